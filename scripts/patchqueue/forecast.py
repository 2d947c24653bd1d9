"""What the queue would do on a release that is not pinned: each patch applies, has moved, is merged upstream, or conflicts.

Starts from what the nearest older pin gets, and lays it on the new tree in memory. A hunk whose text stands at one other
place is laid there, so that what builds on it can be judged too; that patch needs a variant. Nothing is written.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from . import source
from .outcome import Outcome, Problem, Refused
from .patchfile import FileDiff, Hunk, Patch
from .pin import wheel_of
from .pins import Pin, Pins
from .probe import Read, passes
from .replay import apply_to_text, find_text, split_lines
from .series import Queue

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One patch. outcome: APPLIED as it is, NEEDS_REFRESH, MERGED_UPSTREAM or CONFLICT; why: what to know about it."""

    patch: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Forecast:
    """nearest: the pin whose patches were tried; rows: one for each of them, in the series' order."""

    version: Version
    nearest: Pin
    rows: tuple[Row, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome is outcome for row in self.rows)


def forecast(queue: Queue, pins: Pins, name: str, origin: str | None, say: Say) -> Forecast:
    """The queue on release `name`: from the package index, or from `origin`, a wheel or a folder that holds python/sglang.

    Raises Refused for no version, one that is pinned or older than every pin, and where its files cannot be had.
    """
    version = _version(name)
    if any(pin.version == version for pin in pins.all):
        raise Refused(Problem("pinned-already", f"sglang {version}", "is pinned", f"`nox -s check -- v{version}` says what the queue does there"))
    older = [pin for pin in pins.all if pin.version < version]
    if not older:
        raise Refused(Problem("too-old", f"sglang {version}", f"is older than every pin; the first is {pins.all[0].tag}", "name a newer one"))
    with _files(version, origin, say) as read:
        return Forecast(version, older[-1], tuple(_rows(queue, older[-1], read)))


def newer(pins: Pins) -> list[Version]:
    """The releases that the package index has and that are newer than the newest pin, oldest first; no pre-releases."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-watch-") as space:
        versions = map(Version, source.published(Path(space)))
    return sorted(version for version in versions if version > pins.all[-1].version and not version.is_prerelease)


def _version(name: str) -> Version:
    try:
        return Version(name)
    except InvalidVersion:
        raise Refused(Problem("unknown-revision", repr(name), "is no version", "name one as in `nox -s rebase -- 0.5.24`")) from None


@contextmanager
def _files(version: Version, origin: str | None, say: Say) -> Iterator[Read]:
    """How to read the release's files, by their paths in git's layout."""
    if origin and Path(origin).is_dir():
        folder = Path(origin)
        if not (folder / "python/sglang").is_dir():
            raise Refused(Problem("not-fetched", origin, "holds no python/sglang", "give a wheel, or a checkout of sglang"))
        yield lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None
        return
    with tempfile.TemporaryDirectory(prefix="patchqueue-rebase-") as space:
        file = Path(origin) if origin else wheel_of(version, Path(space), say)
        if file is None or not file.is_file():
            raise Refused(Problem("not-fetched", f"sglang {version}", "no wheel of it is to be had", "check the version and `pip config list`, or give a wheel or checkout: --from PATH"))
        try:
            with zipfile.ZipFile(file) as archive:
                found = source.members(archive, "wheel", file.name)
                yield lambda path: archive.read(found[path]) if path in found else None
        except zipfile.BadZipFile as error:
            raise Refused(Problem("bad-archive", file.name, f"is no zip archive: {error}", "do not use this archive")) from None


def _rows(queue: Queue, nearest: Pin, read: Read) -> Iterator[Row]:
    files: dict[str, bytes] = {}
    for patch in queue.select(nearest.version):
        if any(passes(line, read) for line in queue.header(patch.name).probes):
            yield Row(patch.name, Outcome.MERGED_UPSTREAM)
            continue
        row, changed = lay(patch, lambda path: files[path] if path in files else read(path))
        files |= changed
        yield row


def lay(patch: Patch, read: Read) -> tuple[Row, dict[str, bytes]]:
    """One patch on other files than those it was made for: what became of it, and the files that it changes, all or none."""
    changed, moved = {}, 0
    for file in patch.files:
        content = read(file.path)
        if content is None:
            return Row(patch.name, Outcome.CONFLICT, f"{file.path} is gone"), {}
        text = content.decode("utf-8", "surrogateescape")
        result, problems = apply_to_text(text, file, file.path)
        if problems:
            result, why = _elsewhere(text, file)
            if result is None:
                return Row(patch.name, Outcome.CONFLICT, f"{file.path}: {why}"), {}
            moved += len(problems)
        changed[file.path] = result.encode("utf-8", "surrogateescape")
    if moved:
        return Row(patch.name, Outcome.NEEDS_REFRESH, f"{moved} hunk{'s' if moved > 1 else ''} moved"), changed
    return Row(patch.name, Outcome.APPLIED), changed


def _elsewhere(text: str, file: FileDiff) -> tuple[str | None, str]:
    """The text with every hunk at the one place where it fits, or None and why not: hunk by hunk, none before the last."""
    lines, result, done = split_lines(text), [], 0
    for number, hunk in enumerate(file.hunks, 1):
        places = [place for place in find_text(lines, hunk.old) if place >= done]
        if len(places) != 1:
            return None, f"hunk {number} fits {f'at {len(places)} places' if places else f'nowhere; it begins {_begin(hunk)!r}'}"
        result += lines[done : places[0]] + hunk.new
        done = places[0] + len(hunk.old)
    return "".join(result + lines[done:]), ""


def _begin(hunk: Hunk) -> str:
    """The first line that it changes."""
    return next((line.text for line in hunk.lines if line.kind != " "), "").strip()[:60]
