"""The text of a pull request: upstream's own template, filled in with what its folder says.

The template is read from the base, so that its headings, boxes and process are upstream's of that
day. Boxes are left to who sends it. What did not run is one line, the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..queue.header import Header
from .additions import Failure, Run, Text

MOTIVATION, MODIFICATIONS = "Motivation", "Modifications"
ACCURACY, SPEED = "Accuracy Tests", "Speed Tests and Profiling"
SECTIONS = (MOTIVATION, MODIFICATIONS, ACCURACY, SPEED, "Checklist", "Review and Merge Process")
COMMENT = re.compile(r"(?s)<!--.*?-->\n?")
NO_OUTPUTS = "The change does not touch what a model computes."
STEADY = "The change is not on the path of a step."


@dataclass(frozen=True)
class Part:
    """One commit of a pull request. patch: TOPIC/PATCH; own: the patch that is sent, not one that
    only has to be below it.

    files: path -> content as committed; renamed: its tests whose name upstream has, by that name.
    """

    patch: str
    subject: str
    own: bool
    files: dict[str, bytes] = field(repr=False)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The test files that it adds."""
        return sorted(path for path in self.files if path.startswith("test/"))


def from_header(header: Header) -> Text:
    """The text of a patch whose pull request is not written."""
    paragraphs = re.split(r"\n\s*\n", header.get("Description"))
    # one line each: where it is read, a line end is a line's end
    described = "\n\n".join(" ".join(part.split()) for part in paragraphs)
    origin = header.get("Origin").removeprefix("upstream, ")
    builds = "" if origin == "own" else f"It builds on {origin}."
    motivation = _paragraphs(described, builds).replace("sglang#", "#")
    return Text(motivation, f"{header.get('Subject')}.")


def body(template: str, parts: Sequence[Part], text: Text, branch: str) -> str:
    """Markdown, by upstream's template: our sections filled in, all others as they are there.
    branch: the hash of the branch; runs of another one are left out."""
    _, *rest = re.split(r"(?m)^## ", COMMENT.sub("", template))
    pairs = (part.partition("\n") for part in rest)
    theirs = {name.strip(): content.strip() for name, _, content in pairs}
    runs = [run for run in text.runs if run.branch == branch]
    sections = dict.fromkeys(SECTIONS, "") | theirs
    sections |= {
        MOTIVATION: _motivation(parts, text),
        MODIFICATIONS: text.modifications,
        ACCURACY: _paragraphs(
            text.accuracy or ("" if text.outputs else NO_OUTPUTS), *map(_run, runs), _tests(parts)
        ),
        SPEED: text.speed or (STEADY if text.steady else ""),
    }
    shown = [name for name in sections if sections[name] or name in theirs]
    filled = (f"## {name}\n\n{sections[name]}" for name in shown)
    return _paragraphs(*filled, _not_run(text)) + "\n"


def _motivation(parts: Sequence[Part], text: Text) -> str:
    below = [f'"{part.subject}"' for part in parts if not part.own]
    other = "another pull request" if len(below) == 1 else "other pull requests"
    stands = f"This stands on {', '.join(below)}, of {other}." if below else ""
    related = "\n".join(f"- #{each.number}: {each.what}" for each in text.related)
    reproduced = _reproduced(text.failure) if text.failure else ""
    return _paragraphs(text.motivation, related, stands, reproduced)


def _reproduced(failure: Failure) -> str:
    outputs = {"Before:": failure.before, "After:": failure.after}
    shown = (_paragraphs(name, _code(said)) for name, said in outputs.items() if said.strip())
    return _paragraphs("### Reproduction", _code(failure.command), *shown)


def _run(run: Run) -> str:
    return _paragraphs(f"Run on {run.where}, {run.base} with this branch:", _code(run.command))


def _tests(parts: Sequence[Part]) -> str:
    files = [path for part in parts if part.own for path in part.tests]
    commands = _code("\n".join(f"pytest {path}" for path in files))
    return _paragraphs("Unit tests, on a CPU:", commands) if files else ""


def _not_run(text: Text) -> str:
    """One line: the text's own, else what the text does not mention."""
    if text.not_run:
        return text.not_run.strip()
    lacking = []
    if text.outputs and not text.accuracy:
        lacking.append("accuracy of a model")
    if not (text.steady or text.speed):
        lacking.append("speed of a server")
    return f"Not run: {'; '.join(lacking)}." if lacking else ""


def _code(text: str) -> str:
    return f"```\n{text.strip()}\n```"


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())
