"""How large a pull request is, by the mails of its commits: upstream's own of this kind change 2 to
110 lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unidiff.patch import PatchSet

from ..hint import counted

TESTS = "test/"


@dataclass(frozen=True)
class Size:
    """Lines and files of one commit. tests: lines added to test files."""

    added: int
    removed: int
    files: int
    tests: int

    def __str__(self) -> str:
        where = counted(self.files, "file")
        return f"+{self.added} -{self.removed} in {where}, +{self.tests} in tests"


def sizes(mails: Iterable[bytes]) -> list[Size]:
    """One for each mail, in their order."""
    return [_size(PatchSet(mail.decode())) for mail in mails]


def _size(files: PatchSet) -> Size:
    code = [file for file in files if not file.path.startswith(TESTS)]
    tests = [file for file in files if file.path.startswith(TESTS)]
    return Size(
        sum(file.added for file in code),
        sum(file.removed for file in code),
        len(code),
        sum(file.added for file in tests),
    )
