"""Where plots are drawn: matplotlib, which nothing else here needs."""

from __future__ import annotations

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
