"""Pages from the templates beside this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from patchqueue.hint import counted, to_type


def render(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(template).render(values)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [head, ["---", "---", *("---:" for _ in head[2:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
TEMPLATES.globals |= {"counted": counted, "to_type": to_type}
TEMPLATES.filters |= {"paragraph": paragraph}
