"""Lay an ordered patch series and its overlay files on pinned sglang releases, and prove what was
done.

Packages, low to high; none imports from its own floor or a higher one: files · queue upstream ·
applying · environments wheels · install handover · commands

Each package's own docstring says what it is for and lists its modules, low to high too. Below them
all lies outcome.py: what can become of a patch, a tree or an input, and how a command is written
for a user.
"""

# The queue's own release, as in `sglang-0.5.9+pcg.2`. One more after its tag, pcg-2, is pushed.
RELEASE = 2
# The queue's own repository, as https://github.com/OWNER/NAME; empty until it is published. Patched
# wheels send their users there.
REPOSITORY = ""
