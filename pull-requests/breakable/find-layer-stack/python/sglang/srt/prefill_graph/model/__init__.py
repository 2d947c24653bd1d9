"""What a model is, as far as a prefill graph cares."""
