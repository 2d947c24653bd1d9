"""Pages from the templates beside this: one environment, with the words and tables that they
share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from patchqueue.hint import counted, to_type

from .. import benches, gains
from ..records import spoken


def render(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(template).render(values)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def padded(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same, and readable as plain text too."""
    rows = [list(row) for row in rows]
    widths = [max(3, *(len(row[place]) for row in (head, *rows))) for place in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        for row in (head, rule, *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """A change in percent."""
    return f"{value:+.1f}"


def paragraph(text: str) -> str:
    """Sentences that stand on lines of their own in a template, in one line."""
    return " ".join(text.split()) + "\n"


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals |= {
    "benches": benches,
    "counted": counted,
    "gains": gains,
    "padded": padded,
    "table": table,
    "to_type": to_type,
}
TEMPLATES.filters |= {
    "number": number,
    "paragraph": paragraph,
    "signed": signed,
    "spoken": spoken,
}
