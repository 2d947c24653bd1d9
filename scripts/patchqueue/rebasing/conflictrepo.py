"""The throw-away git repository that shows one conflict: the nearest pin and the release as tagged
commits, the patches of the one as commits, and on the branch `rebase` the release with all that is
applied below the conflict.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from ..applying.matching import Files, Row, listing_with
from ..files import atomic
from ..files.run import own_git as git
from ..files.tree import differing, hash_listing, list_folder
from ..outcome import Problem, Refused
from ..queue.series import Queue
from ..upstream.release import Release
from .forecast import Stages, digest, overlay_of

OWN = Path("work/.patchqueue")  # where things are built and put aside, out of everybody's sight
FOR_A_PERSON = (  # settings of the repository itself
    ("core.autocrlf", "false"),
    ("merge.conflictStyle", "diff3"),
    ("core.hooksPath", "/dev/null"),
    ("commit.gpgSign", "false"),
    ("gc.auto", "0"),
)
MARKER = re.compile(rb"(?:<{7}|\|{7}|>{7})(?: .*)?|={7}")
# what editors and merge tools leave
LEFT_OVER = re.compile(r"(?:\.orig|\.rej|\.swp|~)$|_(?:BACKUP|BASE|LOCAL|REMOTE)_\d+\.")
WHO = b"patch queue <> 946684800 +0000"  # the same commits every time


@dataclass(frozen=True)
class Region:
    """Where a marked file wants an edit. line: of its first marker, 1-based; count: how many
    regions it has."""

    path: str
    line: int
    count: int


@dataclass(frozen=True)
class Repository:
    """The throw-away repository for one release. Its own files lie in .git/patchqueue/: what it is
    about, and the release."""

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
    def archive(self) -> Path:
        return self._own / "release.zip"

    @property
    def state(self) -> dict[str, Any] | None:
        """What it shows; None where there is none, or it was not finished. Raises Refused for a
        folder of the user's."""
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

    def remove(self) -> None:
        """Out of sight with one rename, then away."""
        if self.path.exists():
            aside = self.root / OWN / f"{self.path.name}.old"
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.path, aside)
            shutil.rmtree(aside)

    def edited(self) -> bool:
        """Whether a person has changed it since it was laid out."""
        state = self.state
        return state is not None and hash_listing(_listing(self.path)) != state["as_left"]

    def lay_out(
        self, queue: Queue, stages: Stages, release: Release, rows: list[Row], patch: str
    ) -> tuple[Region, ...]:
        """Make it show the release with what is applied of `rows`; and the patch in conflict that
        they end with, "" for none, merged into that."""
        if self.state is None:
            self.remove()
            self._make(queue, stages, release)
        # a run that finds no state file makes the repository again
        (self._own / "state.json").unlink(missing_ok=True)
        branch = b"".join(_branch(queue, release, rows))
        git(self.path, "fast-import", "--quiet", "--force", stdin=branch)
        git(self.path, "symbolic-ref", "HEAD", "refs/heads/rebase")  # wherever a person has gone
        git(self.path, "reset", "-q", "--hard")
        git(self.path, "clean", "-q", "-ffdx")
        if patch and queue.base(patch) in stages.of:
            change = f"refs/patches/{queue.base(patch).removesuffix('.patch')}"
            # its effect is looked at
            git(self.path, "cherry-pick", "--no-commit", "--allow-empty", change, check=False)
        state = {
            "name": release.name,
            "tree": release.tree,
            "patch": patch,
            "below": digest(queue, rows),
            "as_left": hash_listing(_listing(self.path)),
        }
        atomic.write(self._own / "state.json", (json.dumps(state, indent=1) + "\n").encode())
        return self.regions()

    def _make(self, queue: Queue, stages: Stages, release: Release) -> None:
        """Make it, with the commits of the pin and of the release, and rename it into place."""
        aside = self.root / OWN / f"{self.path.name}.building"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        git(aside, "init", "-q", "-b", "rebase")
        for name, value in FOR_A_PERSON:
            git(aside, "config", name, value)
        (aside / ".git/info/attributes").write_text("* -text\n")
        (aside / ".git/info/exclude").write_text("*.orig\n*.rej\n*~\n*.swp\n__pycache__/\n")
        (aside / ".git/patchqueue").mkdir()
        release.keep(aside / ".git/patchqueue/release.zip")
        trees = b"".join(_trees(queue, stages, release))
        git(aside, "fast-import", "--quiet", "--force", stdin=trees)
        os.rename(aside, self.path)

    def regions(self) -> tuple[Region, ...]:
        """The first marked region of each file that git could not merge."""
        names = (
            git(self.path, "diff", "--name-only", "--diff-filter=U", "-z")
            .stdout.decode("utf-8", "surrogateescape")
            .split("\0")
        )
        regions = []
        for name in filter(None, names):
            content = (self.path / name).read_bytes() if (self.path / name).is_file() else b""
            marks = re.finditer(rb"(?m)^<<<<<<< ", content)
            starts = [content.count(b"\n", 0, mark.start()) + 1 for mark in marks]
            regions.append(Region(name, starts[0] if starts else 1, len(starts)))
        return tuple(regions)

    def solution(self, release: Release, below: Files) -> Files:
        """The files that the person changed, as they are now. Raises Refused where they cannot be a
        patch, or still hold markers."""
        expected = listing_with(release.listing(), below)
        present, problems, changed = _listing(self.path), [], {}
        for name in differing(present, expected):
            where = f"{self.shown}/{name}"
            back = f"`git checkout rebase -- {name}` in {self.shown} brings"
            if name not in present:
                what, step = "is deleted, which no patch does", f"{back} it back"
                problems.append(Problem("new-or-deleted-file", where, what, step))
            elif name not in expected:
                what = "is a file that the release does not have"
                step = (
                    "move the change to where that code is now and remove the file; a new file"
                    " belongs into overlay/"
                )
                problems.append(Problem("new-or-deleted-file", where, what, step))
            elif (self.path / name).is_symlink():
                problems.append(Problem("symlink", where, "is a link", f"{back} the file back"))
            else:
                changed[name] = (self.path / name).read_bytes()
                before = below.get(name) or release.read(name) or b""
                problems += _markers(where, before, changed[name])
        if problems:
            raise Refused(problems)
        return changed


def _listing(folder: Path) -> dict[str, str]:
    return {
        path: digest for path, digest in list_folder(folder).items() if not LEFT_OVER.search(path)
    }


def _markers(where: str, before: bytes, after: bytes) -> list[Problem]:
    """Markers that are left: lines that are one and that the release does not have."""
    own, hint = set(before.split(b"\n")), "solve the region, remove its markers, then continue"
    return [
        Problem("markers-left", f"{where}:{number}", f"has a conflict marker: {line[:60]!r}", hint)
        for number, line in enumerate(after.split(b"\n"), 1)
        if MARKER.fullmatch(line) and line not in own
    ]


def _trees(queue: Queue, stages: Stages, release: Release) -> Iterator[bytes]:
    """For git fast-import: the nearest pin, its patches one by one, and the release behind the pin,
    so that both can be compared."""
    before = {path: stages.pristine.read(path) or b"" for path in sorted(stages.pristine.listing())}
    after = {path: release.read(path) or b"" for path in release.paths}
    changed = {path: content for path, content in after.items() if before.get(path) != content}
    yield from _commit(f"refs/tags/{stages.pin.tag}", f"sglang {stages.pin.version}", before, "")
    yield from _commit(
        f"refs/tags/v{release.version}",
        f"sglang {release.version}",
        changed,
        f"refs/tags/{stages.pin.tag}",
        before.keys() - after.keys(),
    )
    queued = f"refs/heads/queue-on-{stages.pin.tag}"
    yield from _commit(queued, "The overlay", stages.overlay, f"refs/tags/{stages.pin.tag}")
    for base, (_, changed_files) in stages.of.items():
        yield from _commit(
            queued, f"{queue.header(base).get('Subject')}\n\n{base}", changed_files, ""
        )
        yield f"reset refs/patches/{base.removesuffix('.patch')}\nfrom {queued}\n\n".encode()


def _branch(queue: Queue, release: Release, rows: list[Row]) -> Iterator[bytes]:
    """The branch that a person works on: a commit for the overlay, and one for each patch that is
    laid."""
    yield from _commit(
        "refs/heads/rebase", "The overlay", overlay_of(queue, rows), f"refs/tags/v{release.version}"
    )
    for row in rows:
        if row.after:
            yield from _commit(
                "refs/heads/rebase",
                f"{queue.header(row.patch).get('Subject')}\n\n{row.patch}: {row.why or 'as it is'}",
                row.after,
                "",
            )


def _commit(
    ref: str, message: str, files: Mapping[str, bytes], parent: str, gone: Iterable[str] = ()
) -> Iterator[bytes]:
    """parent: a ref, or "" for what this stream has on `ref` already. files, gone: what the commit
    changes, and removes."""
    text = message.encode()
    yield (
        f"commit {ref}\ncommitter ".encode() + WHO + f"\ndata {len(text)}\n".encode() + text + b"\n"
    )
    if parent:
        yield f"from {parent}\n".encode()
    # first: a folder may have taken a file's name
    yield from (f"D {path}\n".encode() for path in sorted(gone))
    for path, content in files.items():
        yield f"M 644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n"
    yield b"\n"
