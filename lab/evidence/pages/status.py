"""What docs/proof.md lists: the support matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from patchqueue.outcome import Refused, to_type
from patchqueue.upstream.pins import Pin

from .. import cells
from ..matrix import Cell, State
from .render import put, render

PAGE, BEGIN, END = Path("docs/proof.md"), "<!-- status -->\n", "<!-- /status -->"


def tables(root: Path, rows: Sequence[tuple[Pin, list[Cell]]]) -> str:
    """The matrix as tables. Numbers lead to the reasons of failures below them. rows: the cells of
    every release."""
    reasons: dict[Cell, int] = {}

    def word(one: Cell) -> str:
        if one.state is State.NOT_APPLICABLE:
            return "-"
        said = f"{one.before}\\*" if one.state is State.STALE else str(one.state)
        failed = State.FAILED in (one.state, one.before)
        return f"{said} ({reasons.setdefault(one, len(reasons) + 1)})" if failed else said

    def shown(states: Iterable[Cell]) -> str:
        """A column of two graphs shows both states, or one where they are the same."""
        return " / ".join(dict.fromkeys(map(word, states)))

    shown_tables = []
    known = cells.load(root)
    left = {pin.version: iter(row) for pin, row in rows}  # in the order of the tables
    for table in known.tables:
        columns = known.of(table)
        widths = [len(one) for one in columns.values()]
        made = {of: [shown(islice(row, width)) for width in widths] for of, row in left.items()}
        shown_tables.append({"title": table.title, "columns": [*columns], "rows": made})
    return render("status.md", tables=shown_tables, reasons=[*reasons])


def in_page(text: str, made: str) -> str:
    """The page with what was made between its markers. Raises Refused where it has none."""
    before, opened, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not opened or not closed:
        what = f"has no place for what {to_type('status')} makes"
        step = f"put {BEGIN.strip()} and {END} where it belongs"
        raise Refused.of("no-markers", str(PAGE), what, step)
    return before + BEGIN + made + END + after


def write(root: Path, made: str) -> tuple[Path, ...]:
    """Put the tables into their page. Returns the pages that this changed."""
    text = (root / PAGE).read_text(encoding="utf-8")
    return (PAGE,) if put(root / PAGE, in_page(text, made)) else ()
