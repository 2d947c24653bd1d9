"""A copy of the project to be hard on, and what every figure about it has in common."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchqueue.files.tree import hash_listing, list_folder
from patchqueue.laying import quilt
from patchqueue.laying.selection import select
from patchqueue.laying.worktree import State, WorkTree, read_record
from patchqueue.queue import placed, series
from patchqueue.upstream import pins, source

from ..records import Figure

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("series", "patches", "overlay", "upstream", "tests", "scripts", "noxfile.py")
REPEATS = 5
OWN_FILES = {
    "work/notes.txt": b"mine\n",
    "work/mine/model.bin": bytes(range(256)) * 64,
    "work/.mine": b"",
    "notes.txt": b"mine too\n",
}


class Copy:
    """A copy of the project to be hard on."""

    def __init__(self, folder: Path, tag: str) -> None:
        self.root, self.tag = folder / "project", tag
        self.root.mkdir()
        for name in COPIED:
            original = ROOT / name
            (shutil.copytree if original.is_dir() else shutil.copy2)(original, self.root / name)
        if (ROOT / ".nox/tools").is_dir():
            (self.root / ".nox").mkdir()
            (self.root / ".nox/tools").symlink_to(ROOT / ".nox/tools")
        self.tree = self.root / "work" / tag
        for name, content in OWN_FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)

    def start(self, *words: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start one command of the tool, as the leader of its own process group."""
        command = [sys.executable, "-m", "patchqueue", "--root", str(self.root), *words]
        environment = os.environ | {"PYTHONPATH": str(self.root / "scripts")}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> float:
        """Run one command to its end: the seconds it took. Raises RuntimeError with its words when
        it fails."""
        started = time.monotonic()
        running = self.start(*words)
        said = running.communicate()[0]
        if running.returncode:
            raise RuntimeError(said)
        return time.monotonic() - started

    def remove_tree(self) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)

    def rebuild(self) -> float:
        self.remove_tree()
        return self.run("apply", self.tag)

    @property
    def pin(self) -> pins.Pin:
        return pins.load(self.root).find(self.tag)

    def change_queue(self, text: str) -> None:
        """Make the tree out of date: one more line in the header of a patch that is selected."""
        path = self.root / "patches" / series.read(self.root)[0].select(self.pin.version)[0].name
        head, mark, diff = path.read_text(encoding="utf-8").partition("\n--- ")
        described = re.compile(r"(?m)^Description:.*\n(?: .*\n)*")
        longer = described.sub(lambda found: f"{found[0]} {text}\n", head, count=1)
        if longer == head:
            longer = f"{head}Description: {text} Nothing else.\n"
        path.write_text(longer + mark + diff, encoding="utf-8")

    def queue_files(self) -> dict[str, bytes]:
        """Every file that a refresh may write."""
        files = (
            file
            for name in ("patches", "overlay")
            for file in (self.root / name).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        )
        return {
            str(file.relative_to(self.root)): file.read_bytes()
            for file in (*files, self.root / "series", self.root / placed.FILE)
        }

    def set_queue(self, files: dict[str, bytes]) -> None:
        """Put these files there, and take away those that are not among them."""
        for name in self.queue_files().keys() - files.keys():
            (self.root / name).unlink()
        for name, content in files.items():
            (self.root / name).write_bytes(content)

    def edit_tree(self) -> None:
        """Edit a line that a patch for several releases adds, and an overlay file, in the work
        tree."""
        queue, _ = series.read(self.root)
        known = [pin.version for pin in pins.load(self.root).all]
        shared = {entry.name for entry in queue.entries if sum(map(entry.is_for, known)) > 1}
        patch = next(one for one in queue.select(self.pin.version) if one.name in shared)
        lines = (line for hunk in patch.files[0].hunks for line in hunk.lines)
        added = next(
            text for line in lines if line.kind == "+" and (text := line.text.rstrip("\n")).strip()
        )
        file = self.tree / patch.files[0].path
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(added, f"{added}  # edited", 1), encoding="utf-8")
        with (self.tree / next(iter(queue.overlay))).open("a", encoding="utf-8") as overlaid:
            overlaid.write("# edited\n")

    def expected(self) -> str:
        """The hash of the tree that the queue makes now, from the replay alone: no tool that was
        killed had a part in it."""
        queue, _ = series.read(self.root)
        return select(queue, self.pin).tree_after(source.fetch(self.pin, None))

    def tree_hash(self) -> str:
        return hash_listing(list_folder(self.tree))

    def state(self) -> State:
        return WorkTree(self.root, self.tag).inspect().state

    def harm(self, expected: str) -> list[str]:
        """What is not as it should be after a run that ended well."""
        found = [
            f"{name} was changed"
            for name, content in OWN_FILES.items()
            if (self.root / name).read_bytes() != content
        ]
        if self.tree_hash() != expected:
            found.append(f"tree hash is {self.tree_hash()}")
        record = read_record(self.tree)
        if not record or quilt.applied(self.tree) != [patch["name"] for patch in record["patches"]]:
            found.append("quilt's record is not the tree's")
        own = {f"{self.tag}.lock", f"{self.tag}.sha256sum", "rebase.lock"}
        left = {path.name for path in (self.root / "work/.patchqueue").iterdir()} - own
        return found + [f"{name} was left" for name in sorted(left)]


def counted_right(
    name: str, rounds: int, harm: Sequence[str], details: dict[str, Any], word: str = "right"
) -> Figure:
    """How many of so many rounds did no harm; it is told as "round: what"."""
    right = rounds - len({what.split(":")[0] for what in harm})
    found = details | {"harm": [*harm]}
    return Figure(name, f"{right} of {rounds} {word}", f"{rounds}", not harm, found)
