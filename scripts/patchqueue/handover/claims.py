"""What a pull request claims and which run shows it, as a table for those who send it, below how
large each commit is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .export import PullRequest
from .prtest import Tried
from .prtext import FAILURE, TESTS, Text
from .size import sizes


@dataclass(frozen=True)
class Shown:
    """A claim. by: what shows it, in words; proved: whether that ran on this very branch, or is a
    reference that anyone can look up."""

    patch: str
    says: str
    by: str
    proved: bool


def shown(request: PullRequest, tried: Sequence[Tried]) -> list[Shown]:
    """Each claim of the texts, and what shows it."""
    return [
        Shown(patch, claim.says, *_by(claim.shown_by, text, patch, request, tried))
        for patch, text in request.texts.items()
        for claim in text.claims
    ]


def _by(
    name: str, text: Text, patch: str, request: PullRequest, tried: Sequence[Tried]
) -> tuple[str, bool]:
    if name == FAILURE and text.failure:
        name = text.failure.run
    if name == TESTS:
        own = [one for one in tried if one.patch == patch]
        said = "; ".join(f"{one.said[0]}, without the change {one.said[1]}" for one in own)
        return f"unit tests: {said or 'left out'}", bool(own) and all(one.good for one in own)
    run = text.run(name)
    if run is None:
        return name, True
    here = run.branch == request.hash
    return f"{run.name}: {run.where}{'' if here else ', on another branch'}", here


def table(request: PullRequest, tried: Sequence[Tried]) -> str:
    """Markdown: the hash that runs of this branch are known by, its commits with their changed
    lines, and the claims."""
    rows = [
        f"| {one.says} | {one.by} | {'yes' if one.proved else '**no**'} |"
        for one in shown(request, tried)
    ]
    head = ["| claim | shown by | on this branch |", "|---|---|---|"]
    parts = [f"# {request.branch}", f"Runs of this branch are known by `{request.hash}`."]
    large = zip(request.parts, sizes(request.mails.values()))
    parts.append("\n".join(f"- {part.subject}: {size}" for part, size in large))
    parts.append("\n".join([*head, *rows]) if rows else "Its text lists no claim.")
    return "\n\n".join(parts) + "\n"


def gaps(request: PullRequest, tried: Sequence[Tried]) -> list[str]:
    """What a sender has to know: texts that are missing, and claims that nothing of this branch
    shows."""
    found = []
    for part in (part for part in request.parts if part.own):
        text = request.texts.get(part.patch)
        if text is None:
            found.append(f"{part.patch} has no text of its own: the header speaks in its place")
        elif text.failure is None:
            found.append(f"{part.patch} names no command that shows the failure")
    for one in shown(request, tried):
        if not one.proved:
            found.append(f"nothing of this branch shows {one.says!r} ({one.by})")
    for patch, text in request.texts.items():
        for run in text.runs:
            if run.branch != request.hash:
                found.append(f"the run {run.name!r} of {patch} is of another branch: left out")
    return found
