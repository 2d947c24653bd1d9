"""Tiles of Mamba2's prefill kernels."""
