"""Multimodal models whose text prefills the breakable graph takes, up to 0.5.15.

Such a model hands its layer stack embeddings and a position for each of three axes. Both are
captured: up to 0.5.13 by the overlay's runner, then by the release's, which looks here for what it
lacks. Upstream takes text of these models from 0.5.16 on (sglang#30620).
Importing this module imports neither torch nor any other part of sglang.
"""

from __future__ import annotations

from typing import Any

# Qwen3.5 and Qwen3.6
KNOWN = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
EMBEDS = "input_embeds"


def is_known(architectures: list[str] | None) -> bool:
    """Whether text prefills of such a model are captured. architectures: the classes that
    config.json names."""
    return bool(architectures) and architectures[0] in KNOWN


def takes_embeds(model: Any) -> bool:
    """Whether `model` is one of them: its layer stack gets embeddings, never token ids."""
    return type(model).__name__ in KNOWN


def has_axes(model: Any) -> bool:
    """Whether its positions are three rows, one for each axis of an image."""
    return bool(getattr(model, "is_mrope_enabled", False))


def left_eager(server_args: Any) -> bool:
    """Whether the rule about multimodal models is to leave the breakable graph off (0.5.15). With
    drafts it stays off: the graph of Qwen3.5's own would be captured without the target's hidden
    states, and guess badly."""
    model_config = server_args.get_model_config()
    known = is_known(model_config.hf_config.architectures)
    captured = known and not server_args.speculative_algorithm
    return model_config.is_multimodal and not captured


def positions(graph_runner: Any, forward_batch: Any) -> Any:
    """The positions that the layer stack is captured with, which are those of a replay.

    graph_runner: the prefill graph's of 0.5.14 or 0.5.15. They captured one row always.
    """
    axes = forward_batch.mrope_positions
    three = axes is not None and has_axes(graph_runner.model_runner.model)
    return axes if three else forward_batch.positions


def embeds(graph_runner: Any, forward_batch: Any) -> Any:
    """The embeddings that the layer stack is captured with; None where it makes them itself, which
    is all that 0.5.15 captures. At a replay that has the model's own put into its buffer."""
    given = forward_batch.input_embeds
    if given is not None or not takes_embeds(graph_runner.model_runner.model):
        return given
    buffers, tokens = graph_runner.buffer_registry, len(forward_batch.input_ids)
    return buffers.get_slot(EMBEDS).slice_for(1, tokens) if buffers.has_slot(EMBEDS) else None


def has_images(graph_runner: Any, forward_batch: Any) -> bool:
    """Whether a batch has to run eagerly for its images, videos or sounds. tc_piecewise has no
    `layer_model`: it replays them for the models that upstream lists."""
    return graph_runner.layer_model is not None and forward_batch.contains_mm_inputs()
