"""An installed sglang: found, patched where it lies, and given back to the last byte.

Modules, low to high; none imports from its own floor or a higher one:
installed undo · patched · inplace
"""
