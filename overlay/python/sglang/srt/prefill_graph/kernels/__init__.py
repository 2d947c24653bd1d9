"""Triton kernels for prefill, and the tiles that the releases' own kernels are launched with."""
