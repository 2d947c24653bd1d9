"""Files and folders, safely: one writer at a time, written all or none, known by a hash; and git, run as nobody's.

Modules, low to high; none imports from its own floor or a higher one:
atomic disk locking tree · gitrun
"""
