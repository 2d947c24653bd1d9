"""Files and folders, safely: one writer at a time, all or none, known by a hash; and programs run.

Modules, low to high; none imports from its own floor or a higher one:
atomic record tree · run
"""
