"""The text of a pull request: upstream's own template, filled in with what its folder says.

The template is read from the base, so that its headings, boxes and process are upstream's of that
day. Boxes are left to who sends it. What did not run is one line, the last.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..queue.header import Header
from ..queue.series import Queue
from .drafts import Part
from .export import Exported, PullRequest
from .prtext import Run, Text

MOTIVATION, MODIFICATIONS = "Motivation", "Modifications"
ACCURACY, SPEED = "Accuracy Tests", "Speed Tests and Profiling"
CHECKLIST, PROCESS = "Checklist", "Review and Merge Process"
SECTIONS = (MOTIVATION, MODIFICATIONS, ACCURACY, SPEED, CHECKLIST, PROCESS)
COMMENT = re.compile(r"(?s)<!--.*?-->\n?")
NO_OUTPUTS = "The change does not touch what a model computes."
STEADY = "The change is not on the path of a step."


def body(queue: Queue, exported: Exported, request: PullRequest) -> str:
    """Markdown, by upstream's template: our sections filled in, all others as they are there."""
    template = _sections(exported.template or "")
    parts = dict.fromkeys(SECTIONS, "") | template
    parts |= {
        MOTIVATION: _each(queue, request, _motivation),
        MODIFICATIONS: _each(queue, request, _modifications),
        ACCURACY: _paragraphs(_each(queue, request, _accuracy), _tested(request)),
        SPEED: _each(queue, request, _speed),
    }
    shown = [name for name in parts if parts[name] or name in template]
    return _paragraphs(*(f"## {name}\n\n{parts[name]}" for name in shown), _not_run(request)) + "\n"


def title(request: PullRequest) -> str:
    """That of its text, or the commit's subject, where there is one of its own; else the topic."""
    own = [part for part in request.parts if part.own]
    if len(own) > 1:
        return f"{request.name}: {len(own)} fixes of the prefill graph"
    return own[0].subject


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _sections(template: str) -> dict[str, str]:
    """A template's sections by their headings, without its comments."""
    _, *rest = re.split(r"(?m)^## ", COMMENT.sub("", template))
    pairs = (one.partition("\n") for one in rest)
    return {name.strip(): text.strip() for name, _, text in pairs}


Words = Callable[[PullRequest, Part, "Text | None", Header], str]


def _each(queue: Queue, request: PullRequest, words: Words) -> str:
    """What one section says of each patch, under its subject where there are several."""
    own = [part for part in request.parts if part.own]
    sections = []
    for part in own:
        patch = queue.patches.get(f"{part.patch}.patch")  # a step has none, and a text
        header = patch.header if patch else Header(())
        text = words(request, part, request.texts.get(part.patch), header)
        sections.append(_paragraphs(f"### {part.subject}" if len(own) > 1 and text else "", text))
    return _paragraphs(*sections)


def _motivation(request: PullRequest, part: Part, text: Text | None, header: Header) -> str:
    below = [f'"{one.subject}"' for one in request.parts if not one.own]
    of = "another pull request" if len(below) == 1 else "other pull requests"
    stands = f"This stands on {', '.join(below)}, of {of}." if below else ""
    if text is None:
        return _paragraphs(_folded(header.get("Description")), _origin(header), stands)
    related = "\n".join(f"- #{one.number}: {one.what}" for one in text.related)
    return _paragraphs(text.motivation, related, stands, _reproduced(text))


def _reproduced(text: Text) -> str:
    if text.failure is None:
        return ""
    shown = {
        "": text.failure.command,
        "Before:": text.failure.before,
        "After:": text.failure.after,
    }
    return _paragraphs(
        "### Reproduction",
        *(_paragraphs(name, _code(said)) for name, said in shown.items() if said.strip()),
    )


def _modifications(request: PullRequest, part: Part, text: Text | None, header: Header) -> str:
    return text.modifications if text else f"{part.subject}."


def _accuracy(request: PullRequest, part: Part, text: Text | None, header: Header) -> str:
    if text is None:
        return ""
    runs = [run for run in text.runs if run.branch == request.hash]
    return _paragraphs(text.accuracy or ("" if text.outputs else NO_OUTPUTS), *map(_run, runs))


def _run(run: Run) -> str:
    return _paragraphs(f"Run on {run.where}, {run.base} with this branch:", _code(run.command))


def _code(text: str) -> str:
    return f"```\n{text.strip()}\n```"


def _speed(request: PullRequest, part: Part, text: Text | None, header: Header) -> str:
    return "" if text is None else text.speed or (STEADY if text.steady else "")


def _folded(text: str) -> str:
    """A header's paragraphs in one line each: where it is read, a line end is a line's end."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(paragraphs).replace("sglang#", "#")


def _origin(header: Header) -> str:
    origin = header.get("Origin").removeprefix("upstream, ").replace("sglang#", "#")
    return "" if origin == "own" else f"It builds on {origin}."


def _tested(request: PullRequest) -> str:
    files = [path for part in request.parts if part.own for path in part.tests]
    commands = _code("\n".join(f"pytest {path}" for path in files))
    return _paragraphs("Unit tests, on a CPU:", commands) if files else ""


def _not_run(request: PullRequest) -> str:
    """One line: what the texts say, and what nothing here speaks of."""
    texts = [request.texts.get(part.patch) for part in request.parts if part.own]
    written = [text.not_run.strip() for text in texts if text and text.not_run]
    silent = [text for text in texts if text is None or not text.not_run]
    lacking = []
    if any(text is None or (text.outputs and not text.accuracy) for text in silent):
        lacking.append("accuracy of a model")
    if any(text is None or not (text.steady or text.speed) for text in silent):
        lacking.append("speed of a server")
    return " ".join([*written, *([f"Not run: {'; '.join(lacking)}."] if lacking else [])])
