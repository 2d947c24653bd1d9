"""Why the prefill graph of this scheduler is on or off, as one record.

`report_prefill_graph` is called by a model runner after its graph was captured, or was not. It
leaves the record in a file, which `python -m sglang.srt.prefill_graph` prints, and the first rank
logs one line. From then on prefills are counted (counts.py). Nothing that fails here harms the
server.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..compat import arguments, model_runner, prefill_config
from ..model import layers, stack
from . import counts
from .provenance import read as provenance
from .provenance import tree_hash
from .records import Record, started_at, sweep, write

logger = logging.getLogger(__name__)

ON, OFF, UNKNOWN = "on", "off", "unknown"
RULE = "turned off by the release's own rule: "
# read when the process begins: an install in place can replace the files behind it
TREE, MADE_OF = tree_hash(), provenance()


@dataclass(frozen=True)
class Verdict:
    """verdict: "on" or "off". offender: the first layer at fault as {"index", "class", "reason"},
    where it is a layer."""

    verdict: str
    reason: str
    offender: dict[str, Any] | None = None


def report_prefill_graph(runner: Any) -> Record | None:
    """Leave the record of `runner`, a ModelRunner whose graph was decided, and count its prefills.

    One line at INFO from the first rank of the target model. None for drafts, and where it failed:
    never raises.
    """
    if getattr(runner, "is_draft_worker", False):
        return None
    try:
        record = make_record(runner)
        sweep()
        write(record)
        counts.keep(runner, counts.Counts(_Leaving(runner, record)))
        if model_runner.is_first_rank(runner):
            logger.info("%s. Tree: %s", record, MADE_OF)
        return record
    except Exception as error:
        logger.info(
            "Prefill graph: the report failed (%s: %s); prefill is not affected",
            type(error).__name__,
            error,
        )
        return None


class _Leaving:
    """Writes the record of a ModelRunner anew, with counts. The reason is looked for again only
    where another graph was captured since; the one before is not kept alive."""

    def __init__(self, runner: Any, record: Record) -> None:
        self._runner, self._record = runner, record
        self._graph = _weakly(model_runner.graph_runner(runner))

    def __call__(self, on_graph: int, eager: Mapping[str, int]) -> None:
        graph = model_runner.graph_runner(self._runner)
        if graph is not self._graph():
            self._graph, self._record = _weakly(graph), make_record(self._runner)
        now = dict(on_graph=on_graph, eager=dict(eager), written=time.time())
        write(dataclasses.replace(self._record, **now))


def _weakly(thing: Any) -> Callable[[], Any]:
    """What gives `thing` while it is alive; nothing for one that cannot be referred to weakly."""
    try:
        return weakref.ref(thing)
    except TypeError:  # None is one
        return lambda: None


def make_record(runner: Any) -> Record:
    """The record of this process, without counts. A verdict that cannot be reached is "unknown":
    the tree is told all the same."""
    try:
        verdict, feature = explain(runner), _feature(runner.server_args)
    except Exception as error:
        reason = f"the report failed ({type(error).__name__}: {error})"
        verdict, feature = Verdict(UNKNOWN, reason), UNKNOWN
    graph = model_runner.graph_runner(runner)
    return Record(
        feature=feature,
        verdict=verdict.verdict,
        reason=verdict.reason,
        offender=verdict.offender,
        model=str(getattr(runner.server_args, "model_path", UNKNOWN)),
        pid=os.getpid(),
        started=started_at(os.getpid()),
        tree=TREE,
        ranks=model_runner.ranks(runner),
        port=getattr(runner.server_args, "port", None),
        sizes=model_runner.capture_sizes(graph) if verdict.verdict == ON else (),
        written=time.time(),
        **dataclasses.asdict(MADE_OF),
    )


def _feature(args: Any) -> str:
    return (prefill_config if prefill_config.applies() else arguments).feature(args)


def explain(runner: Any) -> Verdict:
    """The verdict and its reason, from the most general cause to the most particular."""
    graph = model_runner.graph_runner(runner)
    if graph is not None:
        return _of_graph(graph, getattr(runner, "prefill_graph_note", None))
    refusal = getattr(runner, "prefill_graph_refusal", None)
    if refusal:
        offender = _offender(getattr(refusal, "offender", None))
        return Verdict(OFF, getattr(refusal, "reason", refusal), offender)
    if prefill_config.applies():
        return _of_config(runner) or _of_layers(runner)
    return (
        _of_arguments(runner.server_args)
        or _of_switch(runner.server_args)
        or _of_rules(runner)
        or _of_sizes(runner.server_args)
        or _of_layers(runner)
    )


def _of_graph(graph: Any, note: str | None) -> Verdict:
    """note: what captured/layers.py has to say of what was captured."""
    if model_runner.never_runs(graph):
        return Verdict(
            OFF,
            "the runner found no stack of decoder layers to capture, and runs every batch eagerly",
        )
    sizes = model_runner.capture_sizes(graph)
    note = f"; {note}" if note else ""
    if not sizes:
        return Verdict(ON, f"captured{note}")
    why = getattr(graph, "why_these_sizes", None)
    return Verdict(
        ON,
        f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens"
        + (f": {why}" if why else "")
        + note,
    )


def _of_config(runner: Any) -> Verdict | None:
    """From 0.5.14 on."""
    disabled = prefill_config.why_disabled(runner.server_args)
    if disabled:
        return Verdict(OFF, disabled)
    holding = prefill_config.refusals(runner)
    return Verdict(OFF, RULE + "; ".join(map(str, holding))) if holding else None


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
        return Verdict(OFF, RULE + "; ".join(map(str, holding)))
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
    return Verdict(OFF, RULE + "; ".join(map(str, holding))) if holding else None


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
