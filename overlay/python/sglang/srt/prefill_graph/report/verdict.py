"""Why the prefill graph of this scheduler is on or off, as one record, and its prefills counted
from then on (counts.py). Nothing that fails here harms the server."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..compat import arguments, model_runner, prefill_config
from ..model import layers, stack
from . import counts
from .provenance import read as provenance
from .provenance import tree_hash
from .records import Record, sweep, write
from .schedulers import started_at

logger = logging.getLogger(__name__)

ON, OFF, UNKNOWN = "on", "off", "unknown"
# read when the process begins: an install in place can replace the files behind it
TREE, MADE_OF = tree_hash(), provenance()


@dataclass(frozen=True)
class Verdict:
    """verdict: "on" or "off"."""

    verdict: str
    reason: str


def report_prefill_graph(runner: Any) -> Record | None:
    """Leave the record of `runner`, a ModelRunner whose graph was decided, and count its prefills;
    the first rank logs one line. None for drafts, and where it failed: never raises."""
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
        text = "Prefill graph: the report failed (%s: %s); prefill is not affected"
        logger.info(text, type(error).__name__, error)
        return None


class _Leaving:
    """Writes the record of a ModelRunner anew, with counts. The reason is looked for again only
    where another graph was captured since; the one before is not kept alive."""

    def __init__(self, runner: Any, record: Record) -> None:
        self._runner, self._record = runner, record
        self._graph = self._current()

    def _current(self) -> Any:
        try:
            return weakref.ref(model_runner.graph_runner(self._runner))
        except TypeError:  # there is no graph
            return None

    def __call__(self, on_graph: int, eager: Mapping[str, int]) -> None:
        graph = self._current()
        if graph != self._graph:  # that of an object that is gone equals itself alone
            self._graph, self._record = graph, make_record(self._runner)
        now = dict(on_graph=on_graph, eager=dict(eager), written=time.time())
        write(dataclasses.replace(self._record, **now))


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
        model=str(getattr(runner.server_args, "model_path", UNKNOWN)),
        pid=os.getpid(),
        started=started_at(os.getpid()),
        tree=TREE,
        made_of=str(MADE_OF),
        ranks=model_runner.ranks(runner),
        sizes=model_runner.capture_sizes(graph) if verdict.verdict == ON else (),
        written=time.time(),
    )


def _feature(args: Any) -> str:
    return (prefill_config if prefill_config.applies() else arguments).feature(args)


def explain(runner: Any) -> Verdict:
    """The verdict and its reason, from the most general cause to the most particular."""
    graph = model_runner.graph_runner(runner)
    if graph is not None:
        return _of_graph(graph, getattr(runner, "prefill_graph_note", None))
    refusals = (getattr(one, "prefill_graph_refusal", None) for one in (runner, runner.server_args))
    of_settings = _of_config if prefill_config.applies() else _of_arguments
    reason = next(filter(None, refusals), None) or of_settings(runner) or _of_layers(runner)
    return Verdict(OFF, reason)


def _of_graph(graph: Any, note: str | None) -> Verdict:
    """note: what captured/layers.py has to say of what was captured."""
    if model_runner.never_runs(graph):
        why = "the runner found no stack of decoder layers to capture, and runs every batch eagerly"
        return Verdict(OFF, why)
    sizes, why = model_runner.capture_sizes(graph), getattr(graph, "why_these_sizes", None)
    captured = f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens" if sizes else ""
    captured += f": {why}" if captured and why else ""
    return Verdict(ON, "; ".join(filter(None, (captured or "captured", note))))


def _of_config(runner: Any) -> str | None:
    """From 0.5.14 on."""
    disabled = prefill_config.why_disabled(runner.server_args)
    return disabled or _ruled(prefill_config.refusals(runner))


def _of_arguments(runner: Any) -> str | None:
    """Up to 0.5.13."""
    switch = arguments.switch(runner.server_args)
    if switch and not switch.on:
        return _of_switch(switch, arguments.switch_rules(runner.server_args))
    if ruled := _ruled(rule for rule in arguments.runner_rules(runner) if rule.holds):
        return ruled
    if arguments.sizes_to_capture(runner.server_args):
        return None
    return "no capture size fits: --piecewise-cuda-graph-tokens is empty for these limits"


def _of_switch(switch: arguments.Switch, rules: list[arguments.Rule]) -> str:
    if ruled := _ruled(rule for rule in rules if rule.holds):
        return ruled
    if switch.opt_in:
        return f"{switch.flag} is not given"
    unknown = "; ".join(str(rule) for rule in rules if rule.holds is None)
    rest = f", or by a rule that cannot be checked from here: {unknown}" if unknown else ""
    return f"turned off by {switch.flag}{rest}"


def _ruled(holding: Iterable[arguments.Rule]) -> str | None:
    rules = "; ".join(map(str, holding))
    return f"turned off by the release's own rule: {rules}" if rules else None


def _of_layers(runner: Any) -> str:
    found = len(getattr(runner, "attention_layers", ()))
    needed = runner.model_config.num_hidden_layers
    if found >= needed:
        return "the release left it off for a reason that cannot be seen from here"
    try:
        rows = layers.describe(stack.find(runner.model).layers)
    except stack.NoStack as error:
        return str(error)
    incomplete = f"this release lists {found} of the model's {needed} layers"
    return layers.why_incomplete(rows, found, needed) or incomplete
