"""The picture of README.md: time to first token and input tokens a second, in a light and a dark
version. Rows that did not measure both are left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .front import Measured


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


PANELS = (
    Panel("64-token prompt", "ms to first token", "less", "short_ms"),
    Panel("4096-token prompts", "input tokens/s", "more", "tokens_per_s"),
)


def complete(rows: Sequence[Measured]) -> list[Measured]:
    """The rows of the picture."""
    return [
        one
        for one in rows
        if all(getattr(each, panel.figure) for panel in PANELS for each in one.engines.values())
    ]


def description(rows: Sequence[Measured]) -> str:
    """All numbers of the picture as text. Each file holds it: for screen readers, and for the test
    that compares the files with evidence/."""
    return "; ".join(_sentence(one) for one in complete(rows))


def _sentence(one: Measured) -> str:
    parts = [
        f"{name} {getattr(figures, panel.figure):,} {panel.unit}"
        for panel in PANELS
        for name, figures in one.engines.items()
    ]
    return f"{one.row.model}, sglang {one.row.release}, {one.gpu}: {', '.join(parts)}"


def draw(rows: Sequence[Measured], root: Path) -> list[Path]:
    """Write the picture in both versions. Returns the files: none without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for theme in THEMES:
        # no date, no random names of clip paths: the same measurements give the same file
        with pyplot.rc_context(_style(theme)):
            figure = _figure(pyplot, theme, complete(rows))
            figure.savefig(
                root / theme.file,
                transparent=True,
                metadata={"Date": None, "Creator": None, "Description": description(rows)},
            )
            pyplot.close(figure)
    return [root / theme.file for theme in THEMES]


def _style(theme: Theme) -> dict[str, Any]:
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        "font.size": 11,
        "svg.fonttype": "none",  # letters as text: a third of the bytes
        "svg.hashsalt": "front",
        "axes.edgecolor": theme.edge,
        **dict.fromkeys(inks, theme.ink),
    }


def _figure(pyplot: Any, theme: Theme, rows: Sequence[Measured]) -> Any:
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(9.4, 0.62 * len(rows) + 1.4))
    names = list(dict.fromkeys(name for one in rows for name in one.engines))
    for panel, axes in zip(PANELS, panels, strict=True):
        for number, name in enumerate(names):
            # a row's engines lie side by side, around its place
            height = 0.78 / len(names)
            offset = (number - (len(names) - 1) / 2) * height
            places = [place for place, one in enumerate(rows) if name in one.engines]
            values = [getattr(rows[place].engines[name], panel.figure) for place in places]
            across = [place + offset for place in places]
            bars = axes.barh(across, values, height * 0.9, label=name, color=theme.bars[number])
            axes.bar_label(bars, [f"{value:,}" for value in values], padding=4, fontsize=10)
        title = f"{panel.prompts}: {panel.unit}\n({panel.better} is better)"
        axes.set_title(title, fontsize=11, loc="left")
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.set_yticks([])
        axes.tick_params(length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.margins(x=0.16, y=0.01)
    labels = [f"{one.row.model.replace(', ', chr(10))}\nsglang {one.row.release}" for one in rows]
    panels[0].set_yticks(range(len(rows)), labels)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="lower center", ncols=len(names), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure
