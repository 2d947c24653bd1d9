"""Multimodal models whose text prefills the breakable graph takes, up to 0.5.12.

Such a model embeds a batch itself, images among it, and hands its layer stack the embeddings and a position for each of three axes.
The overlay's runner captures that. Batches with images run eagerly; upstream takes text alone too, from 0.5.16 on (sglang#30620).
"""

from __future__ import annotations

from typing import Any

KNOWN = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")  # Qwen3.5 and Qwen3.6


def is_known(architectures: list[str] | None) -> bool:
    """Whether text prefills of such a model are captured. architectures: the classes that config.json names."""
    return bool(architectures) and architectures[0] in KNOWN


def takes_embeds(model: Any) -> bool:
    """Whether `model` is one of them: its layer stack gets embeddings, never token ids."""
    return type(model).__name__ in KNOWN


def has_axes(model: Any) -> bool:
    """Whether its positions are three rows, one for each axis of an image."""
    return bool(getattr(model, "is_mrope_enabled", False))
