"""What the queue does on another release, patch by patch: each applies, is merged by git or
upstream, or conflicts; and the throw-away git repository that shows the first conflict.

The patches of the nearest older pin are applied to the new tree in memory. Where a hunk has not one
place, git merges the change as it was made on the nearest pin, file by file. What needs no hand is
applied, so that what builds on it can be judged too. The queue is not written to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from ..applying.matching import Files, Read, Row, apply_patch, in_front, replay
from ..applying.selection import Selection, passes
from ..files import atomic, run
from ..outcome import Outcome, Problem, Refused, counted
from ..queue.series import Entry, Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins
from ..upstream.release import Release
from .repository import Commit, Repository

MERGED_BY_GIT = "git merges it"  # said of what no person has looked at
# settings of the repository itself, for a person's own git
SETTINGS = (
    "core.autocrlf=false core.fileMode=false core.hooksPath=/dev/null merge.conflictStyle=diff3"
)
# what is no part of a tree, and what editors and merge tools leave
IGNORED = "/* !/python/ !/test/ __pycache__/ *.so *.pyc *.orig *.rej *.sw? *~"
IGNORED += "".join(f" *_{side}_[0-9]*.*" for side in ("BACKUP", "BASE", "LOCAL", "REMOTE"))
WHO, WHEN = "patch queue <>", 946684800  # the same commits every time
NO_PATCH = (
    "is new, gone or a link there, which no patch can make",
    "put the file back as the release has it; a new file belongs into overlay/",
)
MARKER = re.compile(r"(?m)^(.*):(\d+): leftover conflict marker$")  # of `git diff --check`


@dataclass
class Stages:
    """What each patch does on the pin that it comes from, by base name."""

    queue: Queue
    pin: Pin

    @cached_property
    def pristine(self) -> source.Source:
        return source.fetch(self.pin, None)

    @cached_property
    def of(self) -> dict[str, tuple[Files, Files]]:
        """Raises Refused where the queue is broken on that pin."""
        replayed = Selection(self.queue, self.pin).replay(self.pristine.read)
        if replayed.problems:
            raise Refused(replayed.problems)
        return {self.queue.base(row.patch): (row.before, row.after) for row in replayed.steps}


@dataclass(frozen=True)
class Forecast:
    """rows: one for each patch that was tried, in the series' order."""

    queue: Queue
    release: Release
    stages: Stages
    rows: tuple[Row, ...]

    @property
    def version(self) -> Version:
        return self.release.version

    @property
    def nearest(self) -> Pin:
        return self.stages.pin

    @property
    def conflict(self) -> Row | None:
        """The first one that a person has to solve."""
        return next((row for row in self.rows if row.outcome is Outcome.CONFLICT), None)

    @property
    def below(self) -> tuple[Row, ...]:
        """The rows before the first conflict; all where there is none."""
        return self.rows[: self.rows.index(self.conflict)] if self.conflict else self.rows

    def overlay(self) -> Files:
        """The overlay files that the rows up to the first conflict need."""
        names = [row.patch for row in self.below if row.after]
        names += [self.conflict.patch] if self.conflict else []
        return self.queue.overlay_for([self.queue.patches[name] for name in names])


def forecast(
    queue: Queue, pins: Pins, release: Release, solved: Mapping[str, Files] | None = None
) -> Forecast:
    """The queue on a release. solved: by patch, its files as a person left them.

    Raises Refused for a release older than every pin, and for one that has an overlay file itself.
    """
    older = [pin for pin in pins.all if pin.version < release.version]
    if not older:
        what = f"is not newer than the first pin, {pins.all[0].tag}"
        raise Refused.of("too-old", f"sglang {release.version}", what, "name a newer one")
    stages = Stages(queue, older[-1])
    entries = _tried(queue, stages.pin, release.version)
    overlay = queue.overlay_for([queue.patches[entry.name] for entry in entries])
    if shadowed := replay((), overlay, release.files.get, str(release.version)).problems:
        raise Refused(shadowed)
    files, rows = dict(overlay), list[Row]()
    read = in_front(files, release.files.get)
    for entry in entries:
        if row := _settled(queue, entry, release):
            pass
        elif solution := (solved or {}).get(entry.name):
            before = {path: read(path) or b"" for path in solution}
            row = Row(entry.name, Outcome.NEEDS_REFRESH, "solved", before, solution)
        else:
            row = apply_patch(queue.patches[entry.name], read)
        if row.outcome is Outcome.CONFLICT and not row.ambiguous:
            names = (str(release.version), stages.pin.tag, entry.name.removesuffix(".patch"))
            row = _merge(row, stages.of.get(entry.base, ({}, {})), read, names)
        rows.append(row)
        files |= row.after
    return Forecast(queue, release, stages, tuple(rows))


def _tried(queue: Queue, nearest: Pin, version: Version) -> list[Entry]:
    """The release's own patches; and the nearest pin's, where it has no such variant."""
    readable = [entry for entry in queue.entries if entry.name in queue.patches]
    own, old = (
        {entry.base: entry for entry in readable if entry.is_for(each)}
        for each in (version, nearest.version)
    )
    chosen = old | own
    return [entry for entry in readable if entry is chosen.get(entry.base)]


def _settled(queue: Queue, entry: Entry, release: Release) -> Row | None:
    """The row of a patch that its header settles; None for any other."""
    header, version = queue.header(entry.name), release.version
    if any(passes(line, release.files.get) for line in header.probes):
        return Row(entry.name, Outcome.MERGED_UPSTREAM)
    if (gap := header.gap(version)) and not entry.is_for(version):
        return Row(entry.name, Outcome.NOT_SELECTED, gap.reason)
    return None


def _merge(row: Row, stage: tuple[Files, Files], read: Read, names: tuple[str, str, str]) -> Row:
    """A patch that conflicts, as git merges it: applied where no region is left to solve."""
    base, theirs = stage
    ours = {path: content for path in theirs if (content := read(path)) is not None}
    if not theirs or len(ours) < len(theirs):
        return row
    merged = {path: _merged((ours[path], base[path], theirs[path]), names) for path in theirs}
    regions = sum(count for _, count in merged.values())
    after = {path: text for path, (text, _) in merged.items()}
    if regions:
        why = f"{row.why}; {counted(regions, 'region')} to solve"
        return Row(row.patch, Outcome.CONFLICT, why)
    if after == ours:
        why = "changes nothing there, though no Probe of it finds the change"
        return Row(row.patch, Outcome.CONFLICT, why)
    return Row(row.patch, Outcome.NEEDS_REFRESH, MERGED_BY_GIT, ours, after)


def _merged(texts: tuple[bytes, bytes, bytes], names: tuple[str, str, str]) -> tuple[bytes, int]:
    """Three texts as git merges them, and the number of regions left. names: of the texts."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-merge-") as space:
        for file, content in zip(("ours", "base", "theirs"), texts):
            (Path(space) / file).write_bytes(content)
        labels = [word for name in names for word in ("-L", name)]
        words = ["merge-file", "-p", "--diff3", *labels, "ours", "base", "theirs"]
        done = run.own_git(Path(space), *words, check=False)
    if not 0 <= done.returncode <= 127:  # above: git's own failures, as a binary file
        said = str(run.Failed("git", done))
        raise Refused.of("git-failed", "git merge-file", said, "report this")
    return done.stdout, done.returncode


class Region(NamedTuple):
    """Where a marked file wants an edit. line: of its first marker, 1-based; regions: how many."""

    path: str
    line: int
    regions: int


@dataclass(frozen=True)
class ConflictRepository:
    """The throw-away repository for one release: the nearest pin and the release as tagged commits,
    the patches of the one as commits, and on the branch `rebase` the release with all that is
    applied below the conflict.

    .git/patchqueue/ has the name of the patch in conflict, and two trees' hashes: below, the
    branch's; as_left, of the files.
    """

    root: Path
    version: Version

    @property
    def path(self) -> Path:
        return self.root / "work" / f"rebase-{self.version}"

    @property
    def shown(self) -> str:
        return f"work/{self.path.name}"

    @property
    def _own(self) -> Path:
        return self.path / ".git/patchqueue"

    @property
    def _repository(self) -> Repository:
        return Repository(self.path, self.shown, own=True)

    @property
    def state(self) -> dict[str, Any] | None:
        """None where it is absent or unfinished. Raises Refused for a folder of the user's."""
        if not self.path.exists() and not self.path.is_symlink():
            return None
        if not self._own.is_dir():
            what = "is there, but this tool did not make it"
            raise Refused.of("foreign-tree", self.shown, what, "move it away")
        try:
            state: dict[str, Any] = json.loads((self._own / "state.json").read_text("utf-8"))
            return state
        except (OSError, ValueError):
            return None

    def release(self) -> Release:
        """The release that it was made of."""
        return Release(self.version, self._repository.contents(f"refs/tags/v{self.version}"))

    def remove(self) -> None:
        """Out of sight with one rename, then away."""
        if self.path.exists():
            aside = self.root / f"work/.patchqueue/{self.path.name}.old"
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.path, aside)
            shutil.rmtree(aside)

    def shows(self, outlook: Forecast) -> bool:
        """Whether it shows this conflict, on the files that are below it now."""
        state, row = self.state, outlook.conflict
        if state is None or state["patch"] != (row.patch if row else ""):
            return False
        return bool(state["below"] == self._tree(self._commits(outlook)["refs/heads/rebase"]))

    def edited(self) -> bool:
        """Whether a person has changed it since it was laid out."""
        state = self.state
        return state is not None and self._present(state["below"]) != state["as_left"]

    def lay_out(self, outlook: Forecast) -> tuple[Region, ...]:
        """Make it show the release below the first conflict, and that patch merged into it."""
        git = self._repository.git
        self._own.mkdir(parents=True, exist_ok=True)  # first: it says whose the folder is
        # a run that finds no state file lays it out again
        (self._own / "state.json").unlink(missing_ok=True)
        git("init", "-q", "-b", "rebase")
        for setting in SETTINGS.split():
            git("config", *setting.split("="))
        # git says no word on line ends
        (self.path / ".git/info/attributes").write_text("* -text -whitespace\n")
        (self.path / ".git/info/exclude").write_text(IGNORED.replace(" ", "\n"))
        commits = self._commits(outlook)
        lines = "".join(f"update {ref} {commit}\n" for ref, commit in commits.items())
        git("update-ref", "--stdin", stdin=lines.encode())
        git("symbolic-ref", "HEAD", "refs/heads/rebase")  # wherever a person has gone
        git("reset", "-q", "--hard")
        git("clean", "-q", "-ffdx")
        patch, stages = outlook.conflict.patch if outlook.conflict else "", outlook.stages
        if patch and (base := outlook.queue.base(patch)) in stages.of:
            above = len(stages.of) - 1 - list(stages.of).index(base)
            change = f"refs/heads/queue-on-{stages.pin.tag}~{above}"
            words = ("cherry-pick", "--no-commit", "--allow-empty", change)
            run.own_git(self.path, *words, check=False)  # its effect is looked at
        below = self._tree("refs/heads/rebase")
        state = {"patch": patch, "below": below, "as_left": self._present(below)}
        atomic.write(self._own / "state.json", (json.dumps(state, indent=1) + "\n").encode())
        return self.regions()

    def _commits(self, outlook: Forecast) -> dict[str, str]:
        """Its refs, by name, and the commits that they belong at, which are made."""
        queue, pin, of = outlook.queue, outlook.nearest, outlook.stages.of
        before, after = outlook.stages.pristine.contents(), outlook.release.files

        def commit(patch: str, files: Files, why: str = "") -> Commit:
            return Commit(f"{queue.header(patch).get('Subject')}\n\n{patch}{why}", files)

        def made(base: str, *commits: Commit) -> list[str]:
            return self._repository.build(base, commits, WHO, WHEN)

        changed = {path: content for path, content in after.items() if before.get(path) != content}
        removed = before.keys() - after.keys()
        old, new = made(
            "",
            Commit(f"sglang {pin.version}", before),
            Commit(f"sglang {self.version}", changed, removed),
        )
        overlay = Commit("The overlay", queue.overlay_for(queue.select(pin.version)))
        *_, on_pin = made(old, overlay, *(commit(base, of[base][1]) for base in of))
        overlay = Commit("The overlay", outlook.overlay())
        rows = [row for row in outlook.below if row.after]
        patches = (commit(row.patch, row.after, f": {row.why or 'as it is'}") for row in rows)
        *_, below = made(new, overlay, *patches)
        return {
            f"refs/tags/{pin.tag}": old,
            f"refs/tags/v{self.version}": new,
            f"refs/heads/queue-on-{pin.tag}": on_pin,
            "refs/heads/rebase": below,
        }

    def _tree(self, commit: str) -> str:
        return self._repository.word("rev-parse", f"{commit}^{{tree}}")

    def _present(self, below: str) -> str:
        """The tree of the files as they are, by an index of its own. below: the branch's tree."""
        index = {"GIT_INDEX_FILE": str(self._own.absolute() / "index")}
        self._repository.git("read-tree", below, more=index)
        self._repository.git("add", "--all", more=index)
        return self._repository.word("write-tree", more=index)

    def regions(self) -> tuple[Region, ...]:
        """The first marked region of each file that git could not merge."""
        said = self._repository.git("diff", "--name-only", "--diff-filter=U", "-z")
        regions = []
        for name in filter(None, said.decode("utf-8", "surrogateescape").split("\0")):
            content = (self.path / name).read_bytes() if (self.path / name).is_file() else b""
            marks = re.finditer(rb"(?m)^<<<<<<< ", content)
            starts = [content.count(b"\n", 0, mark.start()) + 1 for mark in marks]
            regions.append(Region(name, starts[0] if starts else 1, len(starts)))
        return tuple(regions)

    def solution(self, below: str) -> Files:
        """The files that the person changed since `below`. Raises Refused."""
        trees = (below, self._present(below))
        words = ("diff-tree", "-r", "--no-renames")
        said = self._repository.git(*words, "--name-status", "-z", *trees)
        parts = said.decode("utf-8", "surrogateescape").split("\0")[:-1]
        changed = dict(zip(parts[1::2], parts[::2]))
        problems = [
            Problem("new-or-deleted-file", f"{self.shown}/{name}", *NO_PATCH)
            for name, how in changed.items()
            if how != "M"
        ]
        checked = run.own_git(self.path, *words, "--check", *trees, check=False).stdout
        hint = "solve the region, remove its markers, then continue"
        problems += [
            Problem("markers-left", f"{self.shown}/{name}:{line}", "has a conflict marker", hint)
            for name, line in MARKER.findall(checked.decode("utf-8", "replace"))
        ]
        if problems:
            raise Refused(problems)
        return {name: (self.path / name).read_bytes() for name in changed}
