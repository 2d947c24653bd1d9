"""What the text of a pull request says of runs on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .matrix import place
from .records import Record, Run
from .store import BREAKABLE, proofs

PIECEWISE = "piecewise"
ASIDE = ("eager", "reference")  # what the graph modes are held against


def on_gpus(root: Path, patches: Sequence[str]) -> str:
    """What GPU hosts found on releases with a variant of one of the patches, as a paragraph."""
    rows = [row for found in proofs(root) for row in _runs(found, patches)]
    if not rows:
        return "It was not run on a GPU."
    head = (
        "On GPUs, variants of this change ran as part of a patch queue on earlier releases, never"
        " as this branch. In each run small models with random weights had to answer as eager"
        " prefill does:"
    )
    names = "| release | of these changes | GPU | mode | passed | failed |"
    return "\n".join([head, "", names, "|---|---|---|---|---|---|", *rows])


def _runs(found: Record, patches: Sequence[str]) -> list[str]:
    names = {entry.name.partition("@")[0].removesuffix(".patch") for entry in found.patches}
    here = [patch for patch in patches if patch in names]
    # a kept run may be about an earlier queue
    about = [run for run in found.runs if found.under(run).changes == found.changes]
    modes = {run.mode for run in about if here and touches(here, run.mode)} - set(ASIDE)
    return [_row(found, here, mode, about) for mode in sorted(modes)]


def _row(found: Record, here: Sequence[str], mode: str, runs: Sequence[Run]) -> str:
    models = (
        {run.model for run in runs if (run.mode, run.verdict) == (mode, verdict)}
        for verdict in ("passed", "failed")
    )
    passed, failed = (", ".join(sorted(one)) or "-" for one in models)
    shown = ", ".join(patch.rpartition("/")[2] for patch in here)
    where = place(found).removeprefix("on ")
    return f"| {found.version} | {shown} | {where} | {mode} | {passed} | {failed} |"


def touches(patches: Sequence[str], mode: str) -> bool:
    """Whether one of the patches can matter to a mode: those of the topics breakable and piecewise
    are about that graph alone."""
    topics = {patch.partition("/")[0] for patch in patches}
    return bool(topics - {BREAKABLE, PIECEWISE}) or any(mode.startswith(topic) for topic in topics)
