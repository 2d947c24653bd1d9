"""Triton kernels of our own, and how the release's are launched. Importing the package imports nothing else."""
