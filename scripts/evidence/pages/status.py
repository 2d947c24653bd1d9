"""What docs/proof.md and docs/patches.md list: the support matrix, and the patches by release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from patchqueue.hint import to_type
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Problem, Refused
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin, Pins

from ..cells import Cells
from ..cells import load as load_cells
from ..matrix import Cell, matrix, place
from ..records import Attention, Record
from ..store import proofs, put, today
from .render import render, table

PAGE, BEGIN, END = Path("docs/proof.md"), "<!-- status -->\n", "<!-- /status -->"
ATTENTION_BEGIN, ATTENTION_END = "<!-- attention -->\n", "<!-- /attention -->"
EMPTY = "".join((BEGIN, END, ATTENTION_BEGIN, ATTENTION_END))  # of a page with places for both
PATCHES, PATCHES_BEGIN, PATCHES_END = (
    Path("docs/patches.md"),
    "<!-- releases -->\n",
    "<!-- /releases -->",
)


GRAPHS = {
    "breakable": "breakable",
    "piecewise": "piecewise, eager compiler",
    "piecewise-inductor": "piecewise, inductor",
}


def markdown(cells: Cells, rows: Sequence[tuple[Pin, list[Cell]]]) -> str:
    """The matrix as tables; the numbers in them lead to the reasons below them."""
    reasons: dict[Cell, int] = {}

    def shown(states: Iterable[Cell]) -> str:
        """A column of two graphs shows both states, or one where they are the same."""
        numbered = (f"{one.state} ({reasons.setdefault(one, len(reasons) + 1)})" for one in states)
        return " / ".join(dict.fromkeys(numbered))

    tables = []
    left = {pin.version: iter(row) for pin, row in rows}  # in the order of the tables
    for one_table in cells.tables:
        columns = cells.of(one_table)
        made = {
            version: [shown(islice(row, len(one))) for one in columns.values()]
            for version, row in left.items()
        }
        tables.append({"title": one_table.title, "columns": [*columns], "rows": made})
    return render("status.md", tables=tables, reasons=[*reasons])


def other_attention(root: Path, pins: Pins, attention: Attention = "fa3") -> str:
    """What ran with other attention kernels than the matrix is about, as a table, newest first: of
    each graph how many engines passed. Empty where nothing did."""
    rows = [
        [str(pin.version), _where(root, pin, found), *(_passed(found, mode) for mode in GRAPHS)]
        for pin in reversed(pins.all)
        for found in proofs(root, str(pin.version), attention)
    ]
    return table(["release", "where", *GRAPHS.values()], rows) if rows else ""


def _where(root: Path, pin: Pin, found: Record) -> str:
    queue = "" if found.changes == today(root, pin) else ", an earlier queue"
    return f"{found.date}, {place(found).removeprefix('on ')}{queue}"


def _passed(found: Record, mode: str) -> str:
    """Of the models that ran in a graph, how many passed, and which did not."""
    ran = [run for run in found.runs if run.mode == mode and run.verdict in ("passed", "failed")]
    bad = ", ".join(run.model for run in ran if run.verdict == "failed")
    if not ran:
        return "not run"
    return f"{sum(run.verdict == 'passed' for run in ran)} of {len(ran)}" + (
        f" (not {bad})" if bad else ""
    )


def by_release(queue: Queue, pins: Pins) -> str:
    """The patches of each release as a table, newest first, by topic."""
    releases = []
    for pin in reversed(pins.all):
        topics: dict[str, list[str]] = {}
        for patch in queue.select(pin.version):
            topic, _, name = queue.base(patch.name).removesuffix(".patch").partition("/")
            topics.setdefault(topic, []).append(name)
        releases.append((pin, topics))
    return render("releases.md", releases=releases)


def in_page(text: str, made: str, page: Path = PAGE, begin: str = BEGIN, end: str = END) -> str:
    """The page with what was made between its markers. Raises Refused where it has none."""
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise Refused(
            Problem(
                "no-markers",
                str(page),
                f"has no place for what {to_type('status')} makes",
                f"put {begin.strip()} and {end} where it belongs",
            )
        )
    return before + begin + made + end + after


def tables(root: Path, pins: Pins) -> str:
    """The matrix of today."""
    return markdown(load_cells(root), matrix(root, pins))


def with_blank_lines(made: str) -> str:
    """A table as Markdown wants it in a page."""
    return f"\n{made}\n\n" if made else "\n"


def write(root: Path, pins: Pins) -> tuple[Path, ...]:
    """Put the matrix and the patches by release into their pages. Returns the pages that this
    changed."""
    texts: dict[Path, str] = {}
    changed: dict[Path, str] = {}
    for page, made, begin, end in (
        (PAGE, tables(root, pins), BEGIN, END),
        (PAGE, with_blank_lines(other_attention(root, pins)), ATTENTION_BEGIN, ATTENTION_END),
        (PATCHES, by_release(load_queue(root), pins), PATCHES_BEGIN, PATCHES_END),
    ):
        old = texts.setdefault(page, (root / page).read_text(encoding="utf-8"))
        texts[page] = in_page(old, made, page, begin, end)
        changed |= {page: texts[page]} if texts[page] != old else {}
    for page, text in changed.items():
        put(root / page, text)
    return tuple(changed)
