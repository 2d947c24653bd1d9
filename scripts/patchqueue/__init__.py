"""Lay an ordered patch series and its overlay files on pinned sglang releases, and prove what was done.

Floors, low to high; no module imports from a higher one:
outcome tree locking header guards atomic journal · gitrun · pins patchfile host repository · series source quilt unified ·
replay lint probe installed · worktree · apply pin standins lock · release · forecast · requeue conflictrepo ·
environment check refresh build evidence rebase formatting · testing bundle gpurun status benchpage merge backport inplace ·
fleet figurespage export · prtest · prbody · cli_gpu cli_rebase cli_handover cli_install · cli
"""

RELEASE = 1  # the queue's own release: `sglang-0.5.9+pcg.1`; one more with every release of the queue
