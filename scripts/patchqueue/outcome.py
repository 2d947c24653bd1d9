"""What can become of a patch, a tree or an input: values with reasons, never a bare bool."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Outcome(str, enum.Enum):
    """The outcome of one patch, or of one whole tree."""

    APPLIED = "applied"
    ALREADY_APPLIED = "already applied"
    MERGED_UPSTREAM = "merged upstream"
    NOT_SELECTED = "not selected"
    NEEDS_REFRESH = "needs refresh"
    CONFLICT = "conflict"
    TREE_MISMATCH = "tree mismatch"
    EMPTY = "empty"

    def __str__(self) -> str:
        return self.value

    @property
    def good(self) -> bool:
        """Whether a run that ends so may be called a success."""
        good = (Outcome.APPLIED, Outcome.ALREADY_APPLIED, Outcome.NOT_SELECTED, Outcome.EMPTY)
        return self in good


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, said so that the reader knows where to look and what to type next.

    name: the rule or outcome that names this kind of problem, e.g. "unequal-context".
    where: patch, file, hunk and upstream line as far as they are known.
    what: one sentence. hint: the next command or change, may be empty.
    """

    name: str
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what} [{self.name}]"
        return f"{text}\n    next: {self.hint}" if self.hint else text

    def as_github(self) -> str:
        """The problem as a GitHub workflow annotation."""
        text = f"{self.where}: {self.what}" + (f" Next: {self.hint}" if self.hint else "")
        escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        return f"::error title={self.name}::{escaped}"


class Refused(Exception):
    """The work was not done, and nothing was written, for the problems named."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, name: str, where: str, what: str, hint: str = "") -> Refused:
        """The refusal for one problem, by its fields."""
        return cls(Problem(name, where, what, hint))
