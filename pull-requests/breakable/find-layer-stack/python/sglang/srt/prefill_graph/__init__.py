"""What prefill CUDA graphs need to know about models and memory."""
