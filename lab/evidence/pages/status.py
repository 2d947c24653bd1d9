"""What docs/proof.md lists: the support matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from patchqueue.files import atomic
from patchqueue.outcome import Problem, Refused, to_type
from patchqueue.upstream.pins import Pin, Pins

from .. import cells
from ..cells import Cells, Question
from ..matrix import Cell, State, answers, matrix
from .render import render

PAGE, BEGIN, END = Path("docs/proof.md"), "<!-- status -->\n", "<!-- /status -->"
ASKED = "Repairs that a script asks for by itself"


def markdown(
    cells: Cells,
    rows: Sequence[tuple[Pin, list[Cell]]],
    questions: Iterable[Question] = (),
    asked: Iterable[tuple[Pin, list[Cell]]] = (),
) -> str:
    """The matrix as tables, and one of what scripts ask beside it. Numbers lead to the reasons of
    failures below them."""
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

    tables = []
    left = {pin.version: iter(row) for pin, row in rows}  # in the order of the tables
    for table in cells.tables:
        columns = cells.of(table)
        made = {
            version: [shown(islice(row, len(one))) for one in columns.values()]
            for version, row in left.items()
        }
        tables.append({"title": table.title, "columns": [*columns], "rows": made})
    if titles := [one.title for one in questions]:
        made = {pin.version: [shown([cell]) for cell in cells] for pin, cells in asked}
        tables.append({"title": ASKED, "columns": titles, "rows": made})
    return render("status.md", tables=tables, reasons=[*reasons])


def in_page(text: str, made: str) -> str:
    """The page with what was made between its markers. Raises Refused where it has none."""
    before, opened, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not opened or not closed:
        raise Refused(
            Problem(
                "no-markers",
                str(PAGE),
                f"has no place for what {to_type('status')} makes",
                f"put {BEGIN.strip()} and {END} where it belongs",
            )
        )
    return before + BEGIN + made + END + after


def tables(root: Path, pins: Pins) -> str:
    """The matrix of today."""
    asked = cells.questions(root).values()
    return markdown(cells.load(root), matrix(root, pins), asked, answers(root, pins))


def write(root: Path, pins: Pins) -> tuple[Path, ...]:
    """Put the matrix into its page. Returns the pages that this changed."""
    old = (root / PAGE).read_text(encoding="utf-8")
    new = in_page(old, tables(root, pins))
    if new == old:
        return ()
    atomic.write(root / PAGE, new.encode())
    return (PAGE,)
