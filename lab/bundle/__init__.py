"""What brings a patched release, or another engine, to a GPU host that reaches no package index.

Modules, low to high; none imports from its own floor or a higher one:
elf host rules untouched · packages packing · carried · assemble · release · peer · command
"""
