"""The last that an engine's processes import."""
