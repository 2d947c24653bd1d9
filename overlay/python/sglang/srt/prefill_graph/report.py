"""Why the prefill graph of this server is on or off, as one record.

`report_prefill_graph` is called by a model runner after its graph was captured, or was not. It logs one line and leaves
the record in a file, which `python -m sglang.srt.prefill_graph` prints. Nothing that fails here harms the server.

The file: <XDG_RUNTIME_DIR, or the temporary folder>/sglang-prefill-graph-<uid>/<pid>.json, the folder readable by its
owner only. Records of processes that are gone are ignored, and removed by the next server that writes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import compat, layers, stack
from .provenance import Provenance
from .provenance import read as provenance

logger = logging.getLogger(__name__)

ON, OFF = "on", "off"


@dataclass(frozen=True)
class Verdict:
    """verdict: "on" or "off". offender: the first layer at fault as {"index", "class", "reason"}, where it is a layer."""

    verdict: str
    reason: str
    offender: dict[str, Any] | None = None


@dataclass(frozen=True)
class Record:
    """One server's prefill graph. started: the process's start in clock ticks since boot, to tell it from a later one
    with the same pid; None where the host does not say."""

    feature: str
    verdict: str
    reason: str
    offender: dict[str, Any] | None
    model: str
    version: str
    release: str
    queue: str
    patches: tuple[str, ...]
    pid: int
    started: int | None

    def __str__(self) -> str:
        return f"Prefill graph {self.verdict} ({self.feature}): {self.reason}"


def report_prefill_graph(runner: Any) -> Record | None:
    """Log why `runner` (a ModelRunner whose graph was decided) has its prefill graph or not, and leave the record.

    One line at INFO from the first rank of the target model; None from others. Never raises.
    """
    if getattr(runner, "is_draft_worker", False) or not compat.is_first_rank(runner):
        return None
    try:
        record = make_record(runner)
        logger.info("%s. Tree: %s", record, provenance())
        write(record)
        return record
    except Exception as error:
        logger.info("Prefill graph: the report failed (%s: %s); prefill is not affected", type(error).__name__, error)
        return None


def make_record(runner: Any) -> Record:
    """The record of this process."""
    args, made_of, verdict = runner.server_args, provenance(), explain(runner)
    return Record(
        feature=compat.feature(args),
        verdict=verdict.verdict,
        reason=verdict.reason,
        offender=verdict.offender,
        model=str(getattr(args, "model_path", "unknown")),
        pid=os.getpid(),
        started=_started(os.getpid()),
        **dataclasses.asdict(made_of),
    )


def explain(runner: Any) -> Verdict:
    """The verdict and its reason, from the most general cause to the most particular."""
    graph = compat.graph_runner(runner)
    if graph is not None:
        return _of_graph(graph)
    refusal = getattr(runner, "prefill_graph_refusal", None)
    if refusal:
        return Verdict(OFF, refusal.reason, _offender(refusal.offender))
    return _of_arguments(runner.server_args) or _of_switch(runner.server_args) or _of_rules(runner) or _of_sizes(runner.server_args) or _of_layers(runner)


def _of_graph(graph: Any) -> Verdict:
    if compat.never_runs(graph):
        return Verdict(OFF, "the runner found no stack of decoder layers to capture, and runs every batch eagerly")
    sizes = compat.capture_sizes(graph)
    return Verdict(ON, f"captured {len(sizes)} sizes, {sizes[0]} to {sizes[-1]} tokens" if sizes else "captured")


def _of_arguments(args: Any) -> Verdict | None:
    refusal = getattr(args, "prefill_graph_refusal", None)  # left by arguments.py
    return Verdict(OFF, refusal) if refusal else None


def _of_switch(args: Any) -> Verdict | None:
    switch = compat.switch(args)
    if switch is None or switch.on:
        return None
    rules = compat.switch_rules(args)
    holding = [rule for rule in rules if rule.holds]
    if holding:
        return Verdict(OFF, f"turned off by the release's own rule: {'; '.join(map(str, holding))}")
    if switch.opt_in:
        return Verdict(OFF, f"{switch.flag} is not given")
    open_ = [rule for rule in rules if rule.holds is None]
    rest = f", or by a rule that cannot be checked from here: {'; '.join(map(str, open_))}" if open_ else ""
    return Verdict(OFF, f"turned off by {switch.flag}{rest}")


def _of_rules(runner: Any) -> Verdict | None:
    holding = [rule for rule in compat.runner_rules(runner) if rule.holds]
    return Verdict(OFF, f"turned off by the release's own rule: {'; '.join(map(str, holding))}") if holding else None


def _of_sizes(args: Any) -> Verdict | None:
    if compat.sizes_to_capture(args):
        return None
    return Verdict(OFF, "no capture size fits: --piecewise-cuda-graph-tokens is empty for these limits")


def _of_layers(runner: Any) -> Verdict:
    found, needed = len(getattr(runner, "attention_layers", ())), runner.model_config.num_hidden_layers
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


# The records on this host


def folder() -> Path:
    """Where records lie. It need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"sglang-prefill-graph-{os.getuid()}"


def write(record: Record) -> Path | None:
    """Leave `record` for other processes of this user; None where the host does not allow it."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(place):
            return None
        for path in place.glob("*.json"):
            if _alive(path) is None:
                path.unlink(missing_ok=True)
        path, aside = place / f"{record.pid}.json", place / f"{record.pid}.tmp"
        aside.write_text(json.dumps(dataclasses.asdict(record)) + "\n", encoding="utf-8")
        os.replace(aside, path)
        return path
    except OSError:
        return None


def read_all() -> list[Record]:
    """The records of this user's servers that run now, by pid."""
    place = folder()
    found = [_alive(path) for path in place.glob("*.json")] if _is_ours(place) else []
    return sorted((record for record in found if record), key=lambda record: record.pid)


def _is_ours(place: Path) -> bool:
    """In a shared temporary folder anybody can make a folder of this name first, or a link."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _alive(path: Path) -> Record | None:
    """The record in `path` if it is one and its process still runs."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        record = Record(**{**values, "patches": tuple(values["patches"])})
        os.kill(record.pid, 0)
    except PermissionError:
        return None  # the pid is another user's now
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return record if _started(record.pid) == record.started else None


def _started(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[19])  # field 22 of proc(5), counted from behind the name, which may hold blanks
    except (OSError, ValueError, IndexError):
        return None


def lines(made_of: Provenance, records: list[Record]) -> Iterator[str]:
    """The printed report: this tree, then a block per server."""
    yield f"this tree: {made_of}"
    yield from (f"  {name}" for name in made_of.patches)
    for record in records:
        yield ""
        yield f"server process {record.pid}: {record.model}"
        yield f"  prefill graph  {record.verdict} ({record.feature})"
        yield f"  reason         {record.reason}"
        if record.offender:
            yield f"  first layer    {record.offender['index']} ({record.offender['class']})"
        tree = Provenance(record.version, record.release, record.queue, record.patches)
        yield f"  tree           {tree}"
    if not records:
        yield "no server of this user reports from this host"
