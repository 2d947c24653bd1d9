"""The queue carried to another release: what each patch would do there, and its conflicts.

Modules, low to high; none imports from its own floor or a higher one:
forecast · conflictrepo · rebase
"""
