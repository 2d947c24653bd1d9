"""What a pull request says: pull-request.toml in its folder, the words that no header has.

Each text is Markdown. What was run is named by the hash of the branch that ran, so that a text
cannot show the runs of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ..files import record
from ..files.tree import sha256
from ..outcome import Problem, Refused
from ..queue.header import TREE_PATH

NAME = "pull-request.toml"
BAD = "bad-pull-request"
TESTS = "tests"  # what can show a failure, beside a run
PROBE = re.compile(rf"{TREE_PATH} :: \S[^\n]*")


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """A command, what it prints on the base and with the change. run: the name of the run that
    printed it, or `tests`."""

    command: str
    before: str
    after: str
    run: str


class Related(Struct, frozen=True, forbid_unknown_fields=True):
    """A pull request or issue of upstream's that this one touches."""

    number: int
    what: str


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """What ran outside of the unit tests. branch: the hash of the branch, as export prints it."""

    name: str
    where: str
    command: str
    base: str
    branch: str


class Claim(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence that a reviewer could doubt, and what shows it."""

    says: str
    shown_by: str


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """The file. below: patches that its branch stands on, beside those that the patch's header
    needs; step_to: the patch that a step leads to; probe: how to see that upstream has the step.

    outputs: whether the change touches what a model computes; steady: whether it is off the path of
    a step of the model, so that no speed can change.
    """

    motivation: str
    modifications: str
    title: str = ""
    below: tuple[str, ...] = ()
    step_to: str = ""
    probe: str = ""
    accuracy: str = ""
    outputs: bool = True
    speed: str = ""
    steady: bool = False
    not_run: str = ""
    failure: Failure | None = None
    related: tuple[Related, ...] = ()
    runs: tuple[Run, ...] = ()
    claims: tuple[Claim, ...] = ()


def read(folder: Path, where: str) -> Text | None:
    """The texts of a pull request's folder, None where it has none. where: the file, as it is
    shown. Raises Refused with all that is wrong with them."""
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused.of(BAD, where, f"cannot be read: {error.strerror}") from None
    text = record.toml(content, Text, where, BAD, "CONTRIBUTING.md says what stands in it")
    if wrong := [Problem(BAD, where, what, step) for what, step in _wrong(text)]:
        raise Refused(wrong)
    return text


def _wrong(text: Text) -> Iterator[tuple[str, str]]:
    """What is wrong with a text, and what to do about it."""
    yield from _wrong_step(text)
    if "\n" in text.not_run.strip():
        yield "not_run has several lines", "make it one line: it is the body's last"
    known = {TESTS, *(run.name for run in text.runs)}
    if text.failure and text.failure.run not in known:
        step = f"name one of: {' '.join(sorted(known))}"
        yield f"failure.run names no run: {text.failure.run!r}", step


def _wrong_step(text: Text) -> Iterator[tuple[str, str]]:
    """What a step lacks that a patch's header gives others, or a text has of a step alone."""
    if text.step_to and not text.title:
        yield "a step has no title", "no patch gives it one: add `title`"
    if text.step_to and not PROBE.fullmatch(text.probe):
        yield f"a step's probe is {text.probe!r}", "write it as `PATH :: TEXT`"
    if text.probe and not text.step_to:
        yield "it has a probe, and no step_to", "the patch's header has its probes"


def branch_hash(files: dict[str, bytes]) -> str:
    """What a run of a branch is known by: a hash of the files it changes or adds, less tests, as
    `sha256sum` lists them; "sha256:<hex>"."""
    rows = (
        f"{sha256(content)}  {path}\n"
        for path, content in sorted(files.items())
        if not path.startswith("test/")
    )
    return "sha256:" + sha256("".join(rows).encode())
