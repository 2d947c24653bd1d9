"""The text of a pull request, from the headers of its patches and from evidence/. What was not
measured is said to be so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..hint import counted
from ..outcome import Outcome
from ..proofs.evidence import BREAKABLE, FOLDER, MEASURED, facts
from ..proofs.status import place
from ..queue.header import Header
from ..queue.series import Queue
from .export import Exported, Part, PullRequest
from .prtest import Tried

PIECEWISE = "piecewise"
ASIDE = ("eager", "reference")  # what the graph modes are held against


def body(
    root: Path, queue: Queue, exported: Exported, request: PullRequest, tried: Sequence[Tried] = ()
) -> str:
    """Markdown, in the order of upstream's template. tried: what became of the tests, where they
    were run."""
    own = [part for part in request.parts if part.own]
    headers = {part.patch: queue.patches[f"{part.patch}.patch"].header for part in request.parts}
    parts = [
        f"# {title(request)}",
        *_below(request),
        "## Motivation",
        *(_motivation(part, headers[part.patch], len(own) > 1) for part in own),
        "## Modifications",
        *(_modifications(part, exported) for part in request.parts),
        "## How it was tested",
        _tested(own, tried),
        _on_gpus(root, [part.patch for part in own]),
        "## Benchmark",
        _benchmark(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(request: PullRequest) -> str:
    """The commit's subject where there is one of its own; else the topic and how many."""
    own = [part for part in request.parts if part.own]
    return (
        own[0].subject
        if len(own) == 1
        else f"{request.topic}: {len(own)} fixes of the prefill graph"
    )


def _below(request: PullRequest) -> list[str]:
    below = [part for part in request.parts if not part.own]
    if not below:
        return []
    names = ", ".join(f'"{part.subject}"' for part in below)
    return [
        f"This stands on {names}: the first"
        f" {'commit is' if len(below) == 1 else f'{len(below)} commits are'} of another pull"
        " request, and will go once that one is merged."
    ]


def _motivation(part: Part, header: Header, several: bool) -> str:
    head = f"### {part.subject}\n\n" if several else ""
    paragraphs = re.split(r"\n\s*\n", header.get("Description"))
    # where it is read, a line end is a line's end
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return head + text.replace("sglang#", "#") + _origin(header)


def _origin(header: Header) -> str:
    origin = header.get("Origin")
    return (
        ""
        if origin == "own"
        else f"\n\nIt builds on {origin.removeprefix('upstream, ').replace('sglang#', '#')}."
    )


def _modifications(part: Part, exported: Exported) -> str:
    lines = [f"`{path}`{_kind(path, part)}" for path in sorted(part.files)]
    moved = (
        f" Its hunks stand at other lines than in {exported.pin.version}: {part.row.why}."
        if part.row.outcome is Outcome.NEEDS_REFRESH and not exported.exact
        else ""
    )
    other = "" if part.own else " (of another pull request)"
    return f"**{part.subject}**{other}{'.' if moved else ''}{moved}\n\n" + "\n".join(
        f"- {line}" for line in lines
    )


def _kind(path: str, part: Part) -> str:
    lines = part.files[path].count(b"\n")
    if path.startswith("test/"):
        return f": new tests, {counted(lines, 'line')}"
    return f": new, {counted(lines, 'line')}" if path in part.added else ""


def _tested(own: Iterable[Part], tried: Sequence[Tried]) -> str:
    files = [(path, part) for part in own for path in part.tests]
    if not files:
        return "No test comes with this change."
    known = {one.path: one for one in tried}
    lines = ["Unit tests, on a CPU:", "", "```", *(f"pytest {path}" for path, _ in files), "```"]
    if not tried:
        return "\n".join([*lines, "", "They were not run for this text."])
    rows = [
        f"| `{path.rpartition('/')[2]}` | {known[path].said[0]} | {known[path].said[1]} |"
        for path, _ in files
        if path in known
    ]
    return "\n".join(
        [*lines, "", "| tests | with the change | without it |", "|---|---|---|", *rows]
    )


def _on_gpus(root: Path, patches: Sequence[str]) -> str:
    """What GPU hosts found on releases with a variant of one of the patches."""
    rows = [
        row
        for file in sorted((root / FOLDER).glob("*/*.json"))
        for row in _runs(json.loads(file.read_text(encoding="utf-8")), file, patches)
    ]
    if not rows:
        return "It was not run on a GPU."
    head = (
        "On GPUs, variants of this change ran as part of a patch queue on earlier releases, never"
        " as this branch. In each run small models with random weights had to answer as eager"
        " prefill does:"
    )
    columns = "| release | of these changes | GPU | mode | passed | failed |"
    return "\n".join([head, "", columns, "|---|---|---|---|---|---|", *rows])


def _runs(found: dict, file: Path, patches: Sequence[str]) -> list[str]:
    names = [entry["name"] for entry in found["patches"]]
    here = [
        patch
        for patch in patches
        if any(name == f"{patch}.patch" or name.startswith(f"{patch}@") for name in names)
    ]
    if not here or file.name.endswith(MEASURED):
        return []
    rows = []
    # a kept run may be about an earlier queue
    about = [run for run in found["runs"] if facts(found, run)["changes"] == found["changes"]]
    for mode in sorted({run["mode"] for run in about if touches(here, run["mode"])} - set(ASIDE)):
        runs = [run for run in about if run["mode"] == mode]
        passed, failed = (
            sorted({run["model"] for run in runs if run["verdict"] == verdict})
            for verdict in ("passed", "failed")
        )
        shown = ", ".join(patch.rpartition("/")[2] for patch in here)
        rows.append(
            f"| {found['version']} | {shown} | {place(found).removeprefix('on ')} | {mode} |"
            f" {', '.join(passed) or '-'} | {', '.join(failed) or '-'} |"
        )
    return rows


def touches(patches: Sequence[str], mode: str) -> bool:
    """Whether one of the patches can matter to a mode: those of the topics breakable and piecewise
    are about that graph alone."""
    topics = {patch.partition("/")[0] for patch in patches}
    return bool(topics - {BREAKABLE, PIECEWISE}) or any(mode.startswith(topic) for topic in topics)


def _benchmark() -> str:
    return (
        "Not measured: no run compared a server with this change to one without it, in time or in"
        " memory."
    )
