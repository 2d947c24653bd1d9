"""The part of the queue that is for one release; and, for each other patch, whether the release has
its change or goes without."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .. import RELEASE
from ..files import record
from ..files.tree import hash_python, sha256
from ..outcome import Outcome, Problem, Refused, some, to_type
from ..queue.header import NOT_NEEDED, Probe
from ..queue.patchfile import Patch
from ..queue.series import OVERLAY_PATCH, PACKAGE, PROVENANCE, Queue, as_patch, overlapping
from ..upstream.pins import Pin
from ..upstream.source import Source
from .matching import Read, Replay, Row, listing_with, replay, unified


@dataclass(frozen=True)
class Plan:
    """A selection on a tree. files: what it changes or adds; layers: what each patch makes."""

    selection: Selection
    files: dict[str, bytes]
    layers: tuple[Row, ...]
    record: dict[str, Any]

    def texts(self) -> dict[str, bytes]:
        """The patches as quilt has them, with the tree's lines; the overlay as the first."""
        patches = self.selection.queue.patches
        return {
            layer.patch: as_patch(layer.after)
            if layer.patch == OVERLAY_PATCH
            else f"{patches[layer.patch].head}{unified(layer.before, layer.after)}".encode()
            for layer in self.layers
        }


@dataclass(frozen=True, eq=False)
class Selection:
    """The patches of one release. already_present: those that a tree of others has."""

    queue: Queue
    pin: Pin
    already_present: tuple[str, ...] = ()

    @cached_property
    def _released(self) -> list[Patch]:
        """Every patch for the release."""
        return self.queue.select(self.pin.version)

    @cached_property
    def patches(self) -> list[Patch]:
        """The patches to apply, in order."""
        return [patch for patch in self._released if patch.name not in self.already_present]

    @property
    def touched(self) -> set[str]:
        """The files that the queue changes or adds."""
        return {file.path for patch in self._released for file in patch.files} | set(self.overlay)

    @cached_property
    def _own(self) -> dict[str, bytes]:
        return self.queue.overlay_for(self._released)

    @cached_property
    def overlay(self) -> dict[str, bytes]:
        """The overlay files that the patches need; the overlay's package with its provenance."""
        if not any(path.startswith(PACKAGE) for path in self._own):
            return self._own
        provenance = {  # what a server can read of its patches
            "version": str(self.pin.version),
            "release": RELEASE,
            "queue": self.pin.patched if self.queue.whole else "",
            "wheels": [{"file": wheel.file, "sha256": wheel.sha256} for wheel in self.pin.wheels],
            "patches": [
                {"name": name, "sha256": each, "subject": self.queue.header(name).get("Subject")}
                for name, each in self._texts.items()
            ],
            "overlay": _digests(self._own),
        }
        return self._own | {PROVENANCE: record.text_of(provenance).encode()}

    @cached_property
    def _texts(self) -> dict[str, str]:
        """patch -> the sha256 of its file in the queue."""
        return {patch.name: sha256(patch.content) for patch in self._released}

    def replay(self, read: Read) -> Replay:
        """The strict replay on the release's files."""
        return replay(self.patches, self.overlay, read, self.pin.tag)

    def plan(self, read: Read, origin: Mapping[str, str]) -> Plan:
        """The selection on some files. origin: what they are. Raises Refused."""
        replayed = self._applied(read)
        nothing, layers = dict.fromkeys(self.overlay, b""), replayed.steps
        if self.overlay:
            layers = (Row(OVERLAY_PATCH, Outcome.APPLIED, "", nothing, self.overlay), *layers)
        record = {
            "version": str(self.pin.version),
            "tag": self.pin.tag,
            "source": dict(origin),
            "patches": [
                {"name": row.patch, "text": self._texts.get(row.patch, "")} for row in layers
            ],
            "overlay": _digests(self.overlay),
        }
        return Plan(self, replayed.files, layers, record)

    def made(self, record: Mapping[str, Any]) -> bool:
        """Whether a tree's record is of these patches and overlay files."""
        texts = [
            (patch["name"], patch.get("text"))
            for patch in record["patches"]
            if patch["name"] != OVERLAY_PATCH
        ]
        own = [each for each in self._texts.items() if each[0] not in record.get("there", [])]
        return texts == own and record["overlay"] == _digests(self.overlay)

    def patched_tree(self, pristine: Source) -> str:
        """The tree hash of the release with this selection. Raises Refused."""
        files = self._applied(pristine.read).files
        return hash_python(listing_with(pristine.listing(), files))

    def _applied(self, read: Read) -> Replay:
        replayed = self.replay(read)
        if replayed.problems:
            raise Refused(replayed.problems)
        return replayed


def select(queue: Queue, pin: Pin, without: Sequence[str] = ()) -> Selection:
    """The selection for a pin; without: patches that are left out, as prefill-graph/log-tree.
    Raises Refused where no patch is left, and where one cannot be left out."""
    selection = Selection(_less(queue, pin, without) if without else queue, pin)
    if problems := overlapping(queue, pin.version):
        raise Refused(problems)
    if not selection.patches and (queue.profile or without):
        what = "no patch for it is in the profile of --only, or all are named by --without"
        raise Refused.of("nothing-to-do", pin.tag, what, "leave --only out, or leave fewer out")
    if not selection.patches:
        what = "no patch of the series is for this release"
        raise Refused.of(str(Outcome.EMPTY), pin.tag, what, to_type("rebase", pin.tag))
    return selection


def _less(queue: Queue, pin: Pin, without: Sequence[str]) -> Queue:
    """The queue without some patches, which the release gets and no other one needs."""
    patches = {queue.base(patch.name): patch for patch in queue.select(pin.version)}
    left_out = {f"{stem}.patch" for stem in without}
    for name in sorted(left_out - patches.keys()):
        step = "docs/patches.md lists the patches, with their releases"
        for alike in difflib.get_close_matches(name, patches, 1):
            step = f"did you mean {alike.removesuffix('.patch')}? {step}"
        what = f"{pin.tag} gets no patch of this name"
        raise Refused.of("unknown-patch", name.removesuffix(".patch"), what, step)
    for name, patch in patches.items():
        needed = left_out.intersection(queue.header(patch.name).needs)
        if needed and name not in left_out:
            stem = name.removesuffix(".patch")
            step = f"leave that one out too: --without {stem}"
            where = min(needed).removesuffix(".patch")
            raise Refused.of("needed-patch", where, f"{stem} needs it", step)
    kept = tuple(entry for entry in queue.entries if entry.base not in left_out)
    return replace(queue, entries=kept, whole=False)


def settle(selection: Selection, read: Read, where: str, step: str) -> Selection:
    """The selection without the patches whose change a tree has already. where, step: for messages.
    Raises Refused."""
    replayed = replay(selection.patches, selection.overlay, read, where, step)
    problems = [*replayed.problems]
    taken = [path for path in selection.overlay if read(path) is not None]
    if PROVENANCE in taken:
        what = "carries a queue already: it has the files of its package"
        step = "take that one off first, or begin with a commit that has none"
        problems.insert(0, Problem("patched-already", where, what, step))
    elif taken:
        what = f"the queue adds {some(taken)}, and this tree has a file of that name"
        step = "rename the one of the tree, with what imports it"
        problems.insert(0, Problem(str(Outcome.CONFLICT), where, what, step))
    if problems:
        raise Refused(problems)
    rows = replayed.steps
    present = [row.patch for row in rows if row.outcome is Outcome.ALREADY_APPLIED]
    return replace(selection, already_present=tuple(present))


@dataclass(frozen=True)
class Finding:
    """A patch with its variants on one pin: APPLIED, MERGED_UPSTREAM, or NOT_SELECTED."""

    outcome: Outcome
    problem: Problem | None = None
    why: str = ""

    @property
    def is_gap(self) -> bool:
        """Whether users of the release lack the change."""
        return self.outcome is Outcome.NOT_SELECTED and not self.why.startswith(NOT_NEEDED)


def probe(queue: Queue, pin: Pin, read: Read) -> list[Finding]:
    """Every patch of the queue against one pristine release."""
    bases: dict[str, bool] = {}
    for entry in queue.entries:
        if entry.name in queue.patches:
            bases[entry.base] = bases.get(entry.base, False) or entry.is_for(pin.version)
    return [
        _finding(queue, base, selected, pin, read)
        for base, selected in bases.items()
        if base in queue.patches
    ]


def _finding(queue: Queue, base: str, selected: bool, pin: Pin, read: Read) -> Finding:
    header = queue.patches[base].header
    where = f"patches/{base} on {pin.tag}"
    has = any(passes(line, read) for line in header.probes)
    if selected and not has:
        return Finding(Outcome.APPLIED)
    if has:
        what = "merged upstream: the pristine release passes the patch's Probe"
        step = "end the guard before this release"
        problem = Problem(str(Outcome.MERGED_UPSTREAM), where, what, step) if selected else None
        return Finding(Outcome.MERGED_UPSTREAM, problem)
    if gap := header.gap(pin.version):
        return Finding(Outcome.NOT_SELECTED, why=gap.reason)
    what = "the release lacks the change, and the guard leaves it out"
    step = "widen the guard, or add `Gap: SPECIFIER: reason` to the header"
    return Finding(Outcome.NOT_SELECTED, Problem("unexplained-gap", where, what, step))


def passes(probe: Probe, read: Read) -> bool:
    """Whether a tree passes one line of a header's Probe."""
    path, pattern = probe
    content = read(path)
    return content is not None and bool(pattern.search(content.decode("utf-8", "replace")))


def _digests(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"path": path, "sha256": sha256(content)} for path, content in sorted(files.items())]
