"""What the text of a pull request says of runs on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .matrix import place
from .records import Record
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
    return "\n".join(
        [
            head,
            "",
            "| release | of these changes | GPU | mode | passed | failed |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _runs(found: Record, patches: Sequence[str]) -> list[str]:
    names = [entry.name for entry in found.patches]
    here = [
        patch
        for patch in patches
        if any(name == f"{patch}.patch" or name.startswith(f"{patch}@") for name in names)
    ]
    if not here:
        return []
    rows = []
    # a kept run may be about an earlier queue
    about = [run for run in found.runs if found.under(run).changes == found.changes]
    for mode in sorted({run.mode for run in about if touches(here, run.mode)} - set(ASIDE)):
        runs = [run for run in about if run.mode == mode]
        passed, failed = (
            sorted({run.model for run in runs if run.verdict == verdict})
            for verdict in ("passed", "failed")
        )
        shown = ", ".join(patch.rpartition("/")[2] for patch in here)
        rows.append(
            f"| {found.version} | {shown} | {place(found).removeprefix('on ')} | {mode} |"
            f" {', '.join(passed) or '-'} | {', '.join(failed) or '-'} |"
        )
    return rows


def touches(patches: Sequence[str], mode: str) -> bool:
    """Whether one of the patches can matter to a mode: those of the topics breakable and piecewise
    are about that graph alone."""
    topics = {patch.partition("/")[0] for patch in patches}
    return bool(topics - {BREAKABLE, PIECEWISE}) or any(mode.startswith(topic) for topic in topics)
