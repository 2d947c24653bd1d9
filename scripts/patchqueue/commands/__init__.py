"""The command line: the only package that prints and chooses exit codes.

Modules, low to high; none imports from its own floor or a higher one:
terminal · handover install rebase trees · cli
"""
