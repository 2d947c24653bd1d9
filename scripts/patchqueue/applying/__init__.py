"""The queue applied to a release, in memory and in work/TAG/, and edits there written back.

Modules, low to high; none imports from its own floor or a higher one:
matching · selection worktree · apply · check · refresh
"""
