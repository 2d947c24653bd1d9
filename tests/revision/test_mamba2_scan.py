"""The scan of a Mamba2 prefill in place."""
