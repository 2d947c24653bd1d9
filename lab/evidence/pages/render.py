"""Pages from the templates beside this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from patchqueue.files import atomic
from patchqueue.outcome import to_type


def render(template: str, **values: Any) -> str:
    return TEMPLATES.get_template(template).render(values)


def put(file: Path, text: str) -> bool:
    """Write a page. Returns whether this changed it."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return False
    atomic.write(file, text.encode())
    return True


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right, and no pair of numbers wraps."""
    lines = [head, ["---", "---", *("---:" for _ in head[2:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace(" → ", "\u00a0→\u00a0")


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals["to_type"] = to_type
