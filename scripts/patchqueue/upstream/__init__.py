"""Upstream's releases: which are pinned, and the pristine files of any.

Modules, low to high; none imports from its own floor or a higher one:
pins · source · release
"""
