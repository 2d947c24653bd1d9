"""Check by the watch, the log and the report whether one engine's graph was really used: plain data
in, verdicts out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from compare import Verdict

REPORTS = "prefill-graph/report-verdict"  # the patch that has servers leave a report


def _cached(passes: dict, name: str, kinds: tuple[str, ...]) -> list[tuple[str, int]]:
    """(where, cached prompt tokens) of each answer of a pass to calls of some kinds."""
    calls = ((call, got) for call, got in passes[name].items() if call.startswith(kinds))
    return [(f"{name}/{call}", one["cached"]) for call, got in calls for one in got["answers"]]


def hits(passes: dict) -> Verdict:
    """Whether the calls that continue earlier prompts found them in the cache, on every pass."""
    kinds = ("prefix-",)
    missed = [where for name in passes for where, n in _cached(passes, name, kinds) if not n]
    found = sum(cached for _, cached in _cached(passes, "cold", kinds))
    what, numbers = "prompts that continue earlier ones hit the cache", {"cached": found}
    why = f"missed in {missed[0]}" if missed else f"{found} cached prompt tokens on the first pass"
    return Verdict(what, not missed, why, numbers | {"missed": len(missed)})


def emptied(passes: dict) -> Verdict:
    """Whether the cache was empty before every pass that must find it so: prompts that continue no
    others found nothing there."""
    apart = {"cold": ("single-",), "again": ("single-",), "alone": ("fill-", "batch-")}
    asked = [one for name in apart if name in passes for one in _cached(passes, name, apart[name])]
    found = [where for where, cached in asked if cached]
    why = f"{len(found)} of {len(asked)} hit it, first {found[0]}" if found else ""
    why = why or f"none of {len(asked)} hit it"
    return Verdict("prompts of their own find an empty cache", not found, why)


def flags_known(flags: dict, dropped: Collection[str]) -> Verdict:
    """Whether the release took every flag of the mode."""
    lost = sorted(set(flags).intersection(dropped))
    why = f"it does not know {' '.join(lost)}" if lost else f"{len(flags)} flags"
    return Verdict("the release knows every flag of the mode", not lost, why)


def has_graph(captured: list[dict], report: list[dict]) -> Verdict:
    """Whether the reference's server has a prefill graph, by its log or the queue's report: else
    its kernels may be others."""
    logged = [
        one["what"] for one in captured if "piecewise" in one["what"] or "prefill" in one["what"]
    ]
    on = [entry["feature"] for entry in report if entry["verdict"] == "on"]
    why = f"its log: {', '.join(logged) or 'nothing captured'};"
    why += f" its report: {', '.join(on) or 'nothing on'}"
    return Verdict("the reference's server has a prefill graph", bool(logged or on), why)


def reports(report: object) -> bool:
    """Whether the tree's servers leave a report: those with the patch that has them say why their
    graph is on or off. A missing report is held against these; a tree that the queue did not make
    has None."""
    tree = report.get("tree", {}) if isinstance(report, dict) else {}
    patches = tree.get("patches", [REPORTS])
    return report is not None and any(name.partition("@")[0] == REPORTS for name in patches)


def servers_of(report: object, model: str) -> list[dict]:
    """What the queue's report says of a model's servers. The first rank alone leaves one."""
    servers = report.get("servers", []) if isinstance(report, dict) else []
    return [server for server in servers if Path(str(server.get("model", ""))).name == model]


def reported(report: object, model: str) -> Verdict:
    """Whether the queue's report says that the graph is on."""
    mine = servers_of(report, model)
    said = "; ".join(f"{server['verdict']}: {server['reason']}" for server in mine)
    on = bool(mine) and all(server["verdict"] == "on" for server in mine)
    return Verdict("the report says that the graph is on", on, said or "no report")


def fitting(prefills: list[dict], sizes: Collection[int]) -> list[dict]:
    """The prefills that fit a captured size with the padding that the release takes: from 0.5.16 on
    at most to twice the tokens (sglang's model_executor/runner/prefill_cuda_graph_runner.py:695).
    What needs more runs eagerly."""
    padding = next((line["padding"] for line in prefills if line.get("padding")), math.inf)

    def fits(tokens: int) -> bool:
        return any(tokens <= size <= padding * tokens for size in sizes)

    return [line for line in prefills if fits(line["tokens"])]


def on_graph(line: dict) -> bool:
    """Whether a graph ran a prefill."""
    return bool(line["runner"] and line["launches"])


def replayed(
    what: str,
    prefills: list[dict],
    sizes: Collection[int],
    spans: Sequence[tuple[float, float]],
    wanted: bool = True,
) -> Verdict:
    """Whether graphs ran each prefill that fits one, or none; within spans of time alone."""
    fit = [
        line
        for line in fitting(prefills, sizes)
        if any(begin <= line["at"] <= end for begin, end in spans)
    ]
    count = sum(line["launches"] > 0 for line in fit)
    good = bool(fit) and count == (len(fit) if wanted else 0)
    return Verdict(what, good, f"{count} of {len(fit)} that fit a graph")


def graph_used(
    prefills: list[dict],
    sizes: list[int],
    wanted: bool,
    several_wanted: Collection[int] = (2,),
    refusing: str = "",
) -> Verdict:
    """Whether every prefill that fits a captured size launched graphs, of several_wanted requests
    too (wanted); or none did. sizes: what must have been captured, no more and no less: a size that
    is missing is answered by the next larger one. refusing: code of a rule by which the release
    runs prefills of this model eagerly; one whose reason shows it does not count as fitting."""
    on = "every prefill that fits ran on the graph, of several requests too"
    what = on if wanted else "no prefill ran on a graph"
    fit = fitting(prefills, sizes)
    refused = [line for line in fit if refusing and refusing in (line.get("why") or "")]
    fit = [line for line in fit if line not in refused]
    ran = list(filter(on_graph, prefills))
    several = sorted({line["requests"] for line in ran if line["requests"] > 1})
    numbers = {
        "prefills": len(prefills),
        "fitting": len(fit),
        "on_graph": len(ran),
        "launches": sum(line["launches"] for line in prefills),
        "with_several_requests": sum(line["requests"] > 1 for line in ran),
        "several": several,
        "padded": sum(line["tokens"] not in sizes for line in ran),
    } | ({"refused": len(refused)} if refused else {})
    if not prefills:
        return Verdict(what, False, "the watch saw no prefill", numbers)
    if not wanted:
        return Verdict(what, not ran, f"{len(ran)} of {len(prefills)} did", numbers)
    if fault := _not_used(prefills, fit, sizes, sorted({*several_wanted} - {*several})):
        return Verdict(what, False, fault, numbers)
    why = f"{len(ran)} of {len(prefills)}, with up to {several[-1]} requests,"
    why += f" {numbers['launches']} graph launches"
    why += f"; {len(refused)} are left out by a rule of the release" if refused else ""
    return Verdict(what, True, why, numbers)


def _not_used(
    prefills: list[dict], fit: list[dict], sizes: list[int], missing: Sequence[int]
) -> str:
    """What keeps prefills from having run on the graph as they should. missing: how many requests
    no prefill on it had."""
    if missed := [line for line in fit if not on_graph(line)]:
        first = missed[0]
        return (
            f"{len(missed)} of {len(fit)} did not, first one of {first['tokens']} tokens and"
            f" {first['requests']} requests" + (f": {first['why']}" if first.get("why") else "")
        )
    captured = next((line["captured"] for line in prefills if "captured" in line), None)
    if captured != sorted(sizes):
        return f"captured for {captured}, not for {sorted(sizes)}"
    if missing:
        count = sum(map(on_graph, prefills))
        return f"none of {count} on the graph had {' or '.join(map(str, missing))} requests"
    return ""
