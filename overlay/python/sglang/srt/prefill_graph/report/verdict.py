"""Why the prefill graph of this server is on or off, as one record.

`report_prefill_graph` is called by a model runner after its graph was captured, or was not. It logs
one line and leaves the record in a file, which `python -m sglang.srt.prefill_graph` prints. Nothing
that fails here harms the server.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import Any

from ..compat import arguments, model_runner
from ..model import layers, stack
from .provenance import read as provenance
from .records import Record, started_at, write

logger = logging.getLogger(__name__)

ON, OFF = "on", "off"


@dataclass(frozen=True)
class Verdict:
    """verdict: "on" or "off". offender: the first layer at fault as {"index", "class", "reason"},
    where it is a layer."""

    verdict: str
    reason: str
    offender: dict[str, Any] | None = None


def report_prefill_graph(runner: Any) -> Record | None:
    """Log why `runner` (a ModelRunner whose graph was decided) has its prefill graph or not, and
    leave the record.

    One line at INFO from the first rank of the target model; None from others. Never raises.
    """
    if getattr(runner, "is_draft_worker", False) or not model_runner.is_first_rank(runner):
        return None
    try:
        record = make_record(runner)
        logger.info("%s. Tree: %s", record, provenance())
        write(record)
        return record
    except Exception as error:
        logger.info(
            "Prefill graph: the report failed (%s: %s); prefill is not affected",
            type(error).__name__,
            error,
        )
        return None


def make_record(runner: Any) -> Record:
    """The record of this process."""
    args, made_of, verdict = runner.server_args, provenance(), explain(runner)
    return Record(
        feature=arguments.feature(args),
        verdict=verdict.verdict,
        reason=verdict.reason,
        offender=verdict.offender,
        model=str(getattr(args, "model_path", "unknown")),
        pid=os.getpid(),
        started=started_at(os.getpid()),
        **dataclasses.asdict(made_of),
    )


def explain(runner: Any) -> Verdict:
    """The verdict and its reason, from the most general cause to the most particular."""
    graph = model_runner.graph_runner(runner)
    if graph is not None:
        return _of_graph(graph)
    refusal = getattr(runner, "prefill_graph_refusal", None)
    if refusal:
        return Verdict(OFF, refusal.reason, _offender(refusal.offender))
    return (
        _of_arguments(runner.server_args)
        or _of_switch(runner.server_args)
        or _of_rules(runner)
        or _of_sizes(runner.server_args)
        or _of_layers(runner)
    )


def _of_graph(graph: Any) -> Verdict:
    if model_runner.never_runs(graph):
        return Verdict(
            OFF,
            "the runner found no stack of decoder layers to capture, and runs every batch eagerly",
        )
    sizes = model_runner.capture_sizes(graph)
    if not sizes:
        return Verdict(ON, "captured")
    why = getattr(graph, "why_these_sizes", None)
    return Verdict(
        ON,
        f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens"
        + (f": {why}" if why else ""),
    )


def _of_arguments(args: Any) -> Verdict | None:
    # left by piecewise/sparse.py or bypassed_topk.py
    refusal = getattr(args, "prefill_graph_refusal", None)
    return Verdict(OFF, refusal) if refusal else None


def _of_switch(args: Any) -> Verdict | None:
    switch = arguments.switch(args)
    if switch is None or switch.on:
        return None
    rules = arguments.switch_rules(args)
    holding = [rule for rule in rules if rule.holds]
    if holding:
        return Verdict(OFF, f"turned off by the release's own rule: {'; '.join(map(str, holding))}")
    if switch.opt_in:
        return Verdict(OFF, f"{switch.flag} is not given")
    open_ = [rule for rule in rules if rule.holds is None]
    rest = (
        f", or by a rule that cannot be checked from here: {'; '.join(map(str, open_))}"
        if open_
        else ""
    )
    return Verdict(OFF, f"turned off by {switch.flag}{rest}")


def _of_rules(runner: Any) -> Verdict | None:
    holding = [rule for rule in arguments.runner_rules(runner) if rule.holds]
    return (
        Verdict(OFF, f"turned off by the release's own rule: {'; '.join(map(str, holding))}")
        if holding
        else None
    )


def _of_sizes(args: Any) -> Verdict | None:
    if arguments.sizes_to_capture(args):
        return None
    return Verdict(
        OFF, "no capture size fits: --piecewise-cuda-graph-tokens is empty for these limits"
    )


def _of_layers(runner: Any) -> Verdict:
    found, needed = (
        len(getattr(runner, "attention_layers", ())),
        runner.model_config.num_hidden_layers,
    )
    try:
        decision = layers.judge(layers.describe(stack.find(runner.model).layers), found, needed)
    except stack.NoStack as error:
        return Verdict(OFF, str(error))
    if not decision.allowed:
        return Verdict(OFF, decision.reason, _offender(decision.offender))
    if found < needed:
        return Verdict(OFF, f"this release lists {found} of the model's {needed} layers")
    return Verdict(OFF, "the release left it off for a reason that cannot be seen from here")


def _offender(layer: layers.Layer | None) -> dict[str, Any] | None:
    return layer and {"index": layer.index, "class": layer.class_name, "reason": layer.reason}
