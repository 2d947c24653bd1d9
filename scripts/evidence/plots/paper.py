"""Where plots are drawn: matplotlib, which nothing else here needs; and what plots share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """matplotlib's, which draws to files here; None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, out: Path) -> None:
    """The same file for the same plot."""
    figure.savefig(out, dpi=110, metadata={"Software": None})
    pyplot().close(figure)


def dress(panel: Any, names: Sequence[str], title: str, across: str, size: float = 8) -> None:
    """A panel with things side by side: what they are, and what is measured."""
    panel.set_xticks(range(len(names)), names, fontsize=size)
    panel.set_ylabel(across)
    panel.set_title(title, fontsize=10)
    panel.grid(axis="y", alpha=0.25)


def legend(panel: Any, **how: Any) -> None:
    panel.legend(**({"frameon": False, "fontsize": 8} | how))
