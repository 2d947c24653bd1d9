"""The commands that the pages of this project show, as a reader would type them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fakes import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"(?ms)^ *```(\w*)\n(.*?)^ *```$")
# what a block of commands says it is; other blocks show files and logs
SHELLS = ("sh", "bash", "dockerfile")
PROGRAMS = ("scripts/nox", "nox", "python", "python3", "pip", "uv", "quilt", "git", "sed", "cd")
PROGRAMS += ("pre-commit",)


@dataclass(frozen=True)
class Shown:
    """One command, without its comment. named: in a sentence, which may mean it as such."""

    page: str
    command: str
    named: bool = False


def shown(page: Path) -> Iterator[Shown]:
    """Every command of a page: each line of its shell blocks, and each in a sentence."""
    text = page.read_text(encoding="utf-8")
    for language, block in BLOCK.findall(text):
        whole = re.sub(r"\\\n *", "", block)
        for line in whole.splitlines() if language in SHELLS else ():
            command = re.sub(r"(^|\s+)# .*", "", line).strip()
            if command:
                yield Shown(page.name, command)
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)):
        first = code.split()[0] if code.strip() else ""
        if first in PROGRAMS or re.match(r"[A-Z_]+=\S+ ", code):
            yield Shown(page.name, code, named=True)


def sessions(command: str) -> tuple[list[str], list[str]]:
    """The sessions that a call of nox asks for, and their words; of other calls none."""
    words = shlex.split(command)
    places = [place for place, word in enumerate(words) if re.fullmatch(r"(\S*/)?nox", word)]
    words = words[places[0] + 1 :] if places else []
    if words[:1] != ["-s"]:
        return words[:1], words[1:]
    end = words.index("--") if "--" in words else len(words)
    return words[1:end], words[end + 1 :]
