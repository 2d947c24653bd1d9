"""A release's wheel with the queue on it, and the bundle that brings it to a GPU host.

Modules, low to high; none imports from its own floor or a higher one:
elf host notice packing plugin · build carried · untouched · bundle · peer
"""
