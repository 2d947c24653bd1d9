"""What keeps a server out of the release's own piecewise graph (up to 0.5.13), and the sizes that
it is captured for. The reason stays with the ModelRunner, for the report."""

from __future__ import annotations

from typing import Any

from ..compat import arguments, capture, limits, model_runner
from ..model import layers, stack


def has_layer_stack(runner: Any) -> bool:
    """Whether the model's decoder layers are where the release looks for them. Yes, too, where no
    graph comes into question: then the release itself says why."""
    if not arguments.wants_graph(runner):
        return True
    try:
        found = stack.find(runner.model)
    except stack.NoStack as error:
        model_runner.refused(runner, str(error))
        return False
    if model_runner.sees_layers(runner.model):
        return True
    where = found.path or "the model itself"
    model_runner.refused(runner, f"the release does not look for decoder layers in {where}")
    return False


def admits(runner: Any) -> bool:
    """Whether the release may go on to capture its piecewise graph. Sizes beyond the context and
    the cache are left out.

    runner: ModelRunner whose layers are collected.
    """
    runner.prefill_graph_refusal = None
    if reason := why_not(runner):
        model_runner.refused(runner, reason)
        return False
    runner.server_args.piecewise_cuda_graph_tokens = arguments.sizes_that_fit(runner)
    return True


def why_not(runner: Any) -> str | None:
    """Why the piecewise graph of this server must not be captured, or None."""
    if capture.starves_drafts(runner):
        algorithm = runner.server_args.speculative_algorithm
        return (
            f"drafts ({algorithm}) want hidden states of every prefill, and the piecewise graph is"
            " captured without: no batch would replay it"
        )
    if not arguments.sizes_that_fit(runner):
        return arguments.no_size_fits(runner)
    return limits.answers_otherwise(runner) or layers.uncovered_mixer(runner)
