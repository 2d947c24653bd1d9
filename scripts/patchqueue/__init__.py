"""Lay an ordered patch series and its overlay files on pinned sglang releases, and prove what was done.

Floors, low to high; no module imports from a higher one:
outcome tree locking header journal · pins patchfile host · series source quilt · replay lint probe installed · worktree ·
apply pin standins lock · forecast · environment check refresh build evidence · testing bundle gpurun status benchpage inplace · cli_gpu cli_install · cli
"""

RELEASE = 1  # the queue's own release: `sglang-0.5.9+pcg.1`; one more with every release of the queue
