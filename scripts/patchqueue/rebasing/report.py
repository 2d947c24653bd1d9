"""What the queue would do on a release, in words and as Markdown: an issue's text, for instance."""

from __future__ import annotations

from packaging.version import Version

from ..hint import to_type
from ..outcome import Outcome, Refused
from ..upstream.pins import Pins
from .forecast import MERGED_BY_GIT, Forecast

KINDS = (
    (Outcome.APPLIED, "as they are"),
    (Outcome.NEEDS_REFRESH, "to refresh"),
    (Outcome.MERGED_UPSTREAM, "merged upstream"),
    (Outcome.CONFLICT, "in conflict"),
    (Outcome.NOT_SELECTED, "left out"),  # told where there are such
)


def summary(pins: Pins, outlook: Forecast) -> str:
    """Which patches were tried, and how many of them do what."""
    kinds = KINDS if outlook.count(Outcome.NOT_SELECTED) else KINDS[:-1]
    counts = ", ".join(f"{outlook.count(outcome)} {what}" for outcome, what in kinds)
    pinned = any(pin.version == outlook.version for pin in pins.all)
    tags = " and ".join(pin.tag for pin in (outlook.nearest, outlook.behind) if pin)
    tried = (
        f"which is pinned, with its own patches and those of {tags}"
        if pinned
        else f"with the patches of {tags}"
    )
    return f"sglang {outlook.version}, {tried}: {counts}"


def to_read(outlook: Forecast) -> list[str]:
    """What a person has to look at: a line for each conflict, then for each merge."""
    names = {row.patch: row.patch.removesuffix(".patch") for row in outlook.rows}
    conflicts = [row for row in outlook.rows if row.outcome is Outcome.CONFLICT]
    merged = [row for row in outlook.rows if row.why == MERGED_BY_GIT]
    return [f"{names[row.patch]}: {row.why}" for row in conflicts] + [
        f"{names[row.patch]}: merged without markers, which is no proof of meaning: read it"
        for row in merged
    ]


def markdown(pins: Pins, outlook: Forecast) -> str:
    """The forecast of a release that is to be pinned. The same forecast gives the same text."""
    rows = "".join(
        f"| `{row.patch.removesuffix('.patch')}` | {row.outcome} | {_escaped(row.why)} |\n"
        for row in outlook.rows
    )
    table = f"| patch | outcome | why |\n| --- | --- | --- |\n{rows}"
    return f"{summary(pins, outlook)}.\n\n{table}\n{_next(outlook.version)}"


def markdown_of_refusal(version: Version, refused: Refused) -> str:
    """The text for a release that could not be tried."""
    problems = "".join(
        f"- {_escaped(f'{problem.where}: {problem.what}')}\n" for problem in refused.problems
    )
    return f"sglang {version} could not be tried:\n\n{problems}\n{_next(version)}"


def _next(version: Version) -> str:
    steps = ", then ".join(to_type(command, version) for command in ("pin", "rebase"))
    return f"Next, in a clone of the queue: {steps}.\n"


def _escaped(text: str) -> str:
    """Text as it is, in a table's cell or a list. Code between backticks stays code."""
    parts = " ".join(text.split()).split("`")
    signs = ("|", "|\\<*_[]~")  # in code, and elsewhere
    return "`".join(
        "".join(f"\\{sign}" if sign in signs[place % 2 == 0] else sign for sign in part)
        for place, part in enumerate(parts)
    )
