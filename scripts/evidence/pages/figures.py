"""docs/figures.md and its plots, made from what was measured: every number comes from a file of
evidence/.

evidence/figures.json is what `scripts/nox figures` wrote about the tool; the proofs and benches of
evidence/<version>/ are the rest. The plots need matplotlib, which nothing else here does: they are
drawn where matplotlib is, and left as they were elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .. import figures
from ..benches import NAMES
from ..figures import MODES, TOOL, Measured
from ..plots import figures as plots
from ..records import Figures, Record
from ..store import put
from .render import render, table

PAGE, PLOTS = Path("docs/figures.md"), Path("docs")
VERDICTS = ("passed", "failed", "not applicable", "not run")


def write(root: Path) -> tuple[Path, ...]:
    """Write the page, and the plots where matplotlib is installed. Returns the plots that were
    drawn."""
    measured = figures.load(root)
    (root / PLOTS).mkdir(exist_ok=True)
    drawn = plots.draw(measured, root / PLOTS)
    there = {name for name in plots.DRAWN if plots.file(root / PLOTS, name).is_file()}
    put(root / PAGE, page(measured, there))
    return drawn


def page(measured: Measured, there: Iterable[str]) -> str:
    """The page's text. there: the plots that there are."""
    return render(
        "figures.md",
        measured=measured,
        file=TOOL,
        plots={name: plots.file(Path(), name) for name in there},
        timed=figures.timed_benches(measured),
        tool_table=tool_table,
        proof_table=proof_table(measured),
        capture_table=capture_table(measured),
    )


def tool_table(tool: Figures) -> str:
    """What was promised and measured; a figure that misses its limit says so."""
    return table(
        ["figure", "measured", "limit"],
        (
            [one.name, one.shown + ("" if one.met else ", **missed**"), one.limit]
            for one in tool.figures
        ),
    )


def proof_table(measured: Measured) -> str:
    """How the runs of each release ended; empty where there are none."""
    head = ["one model in one graph mode", *VERDICTS, "about an earlier queue", "checks that held"]
    rows = [_proof_row(measured, one) for one in measured.proofs]
    return table(head, rows) if rows else ""


def _proof_row(measured: Measured, one: Record) -> list[str]:
    graph = [run for run in one.runs if run.mode in MODES]
    checks = [check for run in one.runs for check in run.checks]
    return [
        one.title,
        *(str(sum(run.verdict == verdict for run in graph)) for verdict in VERDICTS),
        str(sum(measured.earlier(one, run) for run in graph)),
        f"{sum(check.good for check in checks)} of {len(checks)}",
    ]


def capture_table(measured: Measured) -> str:
    """Seconds to capture, by mode; empty where nothing was captured."""
    found = figures.captures(measured)
    rows = []
    for what, where in dict.fromkeys((one.what, one.where) for one in found):
        times = {one.mode: one.seconds for one in found if (one.what, one.where) == (what, where)}
        shown = [f"{times[mode]:.1f} s" if mode in times else "-" for mode in MODES]
        rows.append([f"{where}: {what}", *shown])
    return table(["prefill graphs of", *(NAMES[mode] for mode in MODES)], rows) if rows else ""
