"""Plain PyTorch versions of the layers that the graph is split at: one token after the other,
nothing fused.

They read the weights of the release's own module and follow the papers, not sglang's kernels.
"""
