"""The picture of README.md: time to first token and input tokens a second, in a light and a dark
version. Rows that did not measure both are left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .front import Measured
from .pages.render import put, render


class Theme(NamedTuple):
    """Colours of a version; bars in the order of a row's engines."""

    file: str
    ink: str
    edge: str
    bars: tuple[str, ...]


# GitHub's text and border colours. Bars differ without red and green.
THEMES = (
    Theme("docs/images/front-light.svg", "#1f2328", "#d1d9e0", ("#9aa4af", "#0969da", "#bc4c00")),
    Theme("docs/images/front-dark.svg", "#f0f6fc", "#3d444d", ("#6e7781", "#58a6ff", "#f0883e")),
)


class Panel(NamedTuple):
    """One figure of all rows. figure: its name in front.Figures."""

    prompts: str
    unit: str
    better: str
    figure: str

    def values(self, row: Measured) -> dict[str, int]:
        """The figure of each engine that has it."""
        found = {name: getattr(one, self.figure) for name, one in row.engines.items()}
        return {name: value for name, value in found.items() if value}

    def most(self, rows: Sequence[Measured]) -> int:
        return max(value for row in rows for value in self.values(row).values())


PANELS = (
    Panel("64-token prompt", "ms to first token", "less", "short_ms"),
    Panel("4096-token prompts", "input tokens/s", "more", "tokens_per_s"),
)


def complete(rows: Sequence[Measured]) -> list[Measured]:
    """The rows of the picture."""

    def has_all(one: Measured) -> bool:
        return all(panel.values(one).keys() == one.engines.keys() for panel in PANELS)

    return list(filter(has_all, rows))


def description(rows: Sequence[Measured]) -> str:
    """All numbers of the picture as text. Each file holds it: for screen readers, and for the test
    that compares the files with evidence/."""
    return "; ".join(_sentence(one) for one in complete(rows))


def _sentence(one: Measured) -> str:
    found = [(panel.unit, *of) for panel in PANELS for of in panel.values(one).items()]
    parts = [f"{name} {value:,} {unit}" for unit, name, value in found]
    return f"{one.row.model}, sglang {one.row.release}, {one.gpu}: {', '.join(parts)}"


def draw(rows: Sequence[Measured], root: Path) -> list[Path]:
    """Draw the picture in both versions. Returns the files that this changed."""
    shown = complete(rows)
    engines = list(dict.fromkeys(name for one in shown for name in one.engines))
    values = {"rows": shown, "engines": engines, "panels": PANELS, "description": description(rows)}
    pages = {root / theme.file: render("front.svg", theme=theme, **values) for theme in THEMES}
    return [file for file, text in pages.items() if put(file, text)]
