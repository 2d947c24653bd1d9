"""What of the queue is for one release: selected once for a command, and handed on; and, for each
patch that is not, whether the release has its change or goes without.

On a tree with edits of others, a patch whose every change the tree has already is left out.
Anything else that does not apply is a conflict, and nothing is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .. import RELEASE
from ..files import record
from ..files.tree import hash_listing, hash_python, sha256
from ..hint import some, to_type
from ..outcome import Outcome, Problem, Refused
from ..queue.header import NOT_NEEDED, ProbeLine
from ..queue.patchfile import Patch, of_files
from ..queue.series import OVERLAY_PATCH, PACKAGE, PROVENANCE, Queue, as_patch
from ..upstream.pins import Pin
from ..upstream.source import Source
from .context import rendered
from .matching import Read, Replay, in_front, inverted, lay_patch, listing_with, misfits, replay


@dataclass(frozen=True, eq=False)
class Selection:
    """The patches and overlay files of one release, and the hashes that records name them by.

    already_present: patches whose change a tree of others has already, which are not applied to it.
    The hashes do not depend on it.
    """

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
        return self._own | {PROVENANCE: record.text_of(self._provenance()).encode()}

    def _provenance(self) -> dict[str, Any]:
        """What a server can read of the patches that it runs with."""
        return {
            "version": str(self.pin.version),
            "release": RELEASE,
            "queue": self.overlay_sha256,
            "wheels": [{"file": wheel.file, "sha256": wheel.sha256} for wheel in self.pin.wheels],
            "patches": [
                {
                    "name": patch.name,
                    "sha256": sha256(patch.content),
                    "subject": self.queue.header(patch.name).get("Subject"),
                }
                for patch in self._released
            ],
            "overlay": _digests(self._own),
        }

    @cached_property
    def _overlay_patch(self) -> dict[str, bytes]:
        return {OVERLAY_PATCH: as_patch(self.overlay)} if self.overlay else {}

    @property
    def _texts(self) -> dict[str, bytes]:
        return {patch.name: patch.content for patch in self._released}

    @cached_property
    def stack_sha256(self) -> str:
        """The hash of all that quilt pushes: records and evidence call it `queue`.

        It changes with every patch, header included, and with every overlay file.
        """
        return _named_hash(self._overlay_patch | self._texts)

    @cached_property
    def overlay_sha256(self) -> str:
        """The same without the overlay's provenance.json, which calls it `queue` in its turn."""
        return _named_hash({OVERLAY_PATCH: as_patch(self._own)} | self._texts)

    @property
    def effect_sha256(self) -> str:
        """The pinned hash of the release with the whole queue on it: evidence calls it `queue`."""
        return self.pin.patched

    def replay(self, read: Read) -> Replay:
        """The strict replay on the release's files."""
        return replay(self.patches, self.overlay, read, self.pin.tag)

    def stack(self, planned: Replay) -> dict[str, bytes]:
        """What quilt pushes, in order: the overlay as one generated patch, then the patches.

        Each has the release's own lines and three lines of its own context, as the replay found
        them: at no offset, with no fuzz.
        """
        rows = {row.patch: row for row in planned.steps}
        return self._overlay_patch | {
            patch.name: rendered(patch, rows[patch.name]).content for patch in self.patches
        }

    def _listing_after(self, pristine: Source) -> dict[str, str]:
        """The listing of the release with this selection on it. Raises Refused where a patch does
        not apply."""
        planned = self.replay(pristine.read)
        if planned.problems:
            raise Refused(planned.problems)
        return listing_with(pristine.listing(), planned.files)

    def tree_after(self, pristine: Source) -> str:
        """The hash of all files of the release with this selection on it, as a record has it."""
        return hash_listing(self._listing_after(pristine))

    def patched_tree(self, pristine: Source) -> str:
        """The tree hash (see files/tree.py) of the release with this selection on it."""
        return hash_python(self._listing_after(pristine))

    def record(
        self,
        origin: Mapping[str, str],
        before: dict[str, str],
        after: dict[str, str],
        pushed: Mapping[str, bytes],
    ) -> dict[str, Any]:
        """A patched tree's provenance.

        origin: what it was made of (kind, name, sha256); before, after: the tree's listings;
        pushed: its stack.
        """
        stacked = [{"name": name, "sha256": sha256(text)} for name, text in pushed.items()]
        return {
            "version": str(self.pin.version),
            "tag": self.pin.tag,
            "source": origin,
            "queue": self.stack_sha256,
            "changes": hash_python(after),
            "patches": stacked,
            "overlay": _digests(self.overlay),
            "tree": {
                "before": hash_listing(before),
                "after": hash_listing(after),
                "patched": hash_python(after),
            },
        }


def select(queue: Queue, pin: Pin) -> Selection:
    """What is for this pin. Raises Refused when there is no patch and pins.toml does not say why,
    or says so wrongly."""
    selection = Selection(queue, pin)
    if not selection.patches and not pin.no_patches:
        step = (
            f"{to_type('rebase', pin.tag)}; or give the reason as no_patches in upstream/pins.toml"
        )
        raise Refused.of(
            str(Outcome.EMPTY), pin.tag, "no patch of the series is for this release", step
        )
    if selection.patches and pin.no_patches:
        first = selection.patches[0].name
        what = f"pins.toml says there is no patch ({pin.no_patches}), but {first} is for it"
        raise Refused.of("stale-no-patches", pin.tag, what, "remove no_patches")
    return selection


def settle(selection: Selection, read: Read, where: str, step: str) -> Selection:
    """The selection without the patches whose change a tree has already.

    read: its files; where: what a user calls it; step: what to do about a conflict. Raises Refused,
    with a problem for each hunk that does not fit, by both sides.
    """
    problems = list(_shadowed(selection, read, where))
    files = dict(selection.overlay)
    present: list[str] = []
    unfit_paths: set[str] = set()
    for patch in selection.patches:
        below = in_front(files, read)
        match = lay_patch(patch, below)
        if match.lines is not None:
            files |= match.after
        elif lay_patch(of_files(patch, map(inverted, patch.files)), below).lines is not None:
            present.append(patch.name)
        else:
            paths = {file.path for file in patch.files}
            # a patch on top of one that does not fit says nothing of its own
            if not paths & unfit_paths:
                problems += [problem for _, problem in misfits(patch, below, where, step)]
            unfit_paths |= paths
    if problems:
        raise Refused(problems)
    return replace(selection, already_present=tuple(present))


def _shadowed(selection: Selection, read: Read, where: str) -> Iterator[Problem]:
    """Files of the tree that have the name of one that the queue adds."""
    taken = [path for path in selection.overlay if read(path) is not None]
    if PROVENANCE in taken:
        what = "carries a queue already: it has the files of its package"
        step = "take that one off first, or begin with a commit that has none"
        yield Problem("patched-already", where, what, step)
    elif taken:
        what = f"the queue adds {some(taken)}, and this tree has a file of that name"
        step = "rename the one of the tree, with what imports it"
        yield Problem(str(Outcome.CONFLICT), where, what, step)


@dataclass(frozen=True)
class Finding:
    """One patch (all its variants together) on one pin. outcome: APPLIED selected, MERGED_UPSTREAM,
    or NOT_SELECTED, a gap.

    reason: why it is not offered there, for a gap.
    """

    patch: str
    pin: Pin
    outcome: Outcome
    reason: str = ""
    problem: Problem | None = None

    @property
    def is_gap(self) -> bool:
        """Whether users of the release lack the change; a reason may say that they do without
        it."""
        return self.outcome is Outcome.NOT_SELECTED and not self.reason.startswith(NOT_NEEDED)


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
    if selected and has:
        problem = Problem(
            str(Outcome.MERGED_UPSTREAM),
            where,
            "merged upstream: the pristine release passes the patch's Probe",
            "end the guard before this release",
        )
        return Finding(base, pin, Outcome.MERGED_UPSTREAM, problem=problem)
    if selected:
        return Finding(base, pin, Outcome.APPLIED)
    if has:
        return Finding(base, pin, Outcome.MERGED_UPSTREAM)
    reasons = [
        gap.reason for gap in header.gaps if gap.releases.contains(pin.version, prereleases=True)
    ]
    if reasons:
        return Finding(base, pin, Outcome.NOT_SELECTED, reasons[0])
    problem = Problem(
        "unexplained-gap",
        where,
        "the release lacks the change, and the guard leaves it out",
        "widen the guard, or add `Gap: SPECIFIER: reason` to the header",
    )
    return Finding(base, pin, Outcome.NOT_SELECTED, problem=problem)


def passes(line: ProbeLine, read: Read) -> bool:
    """Whether a tree passes one line of a header's Probe."""
    content = read(line.path)
    return content is not None and line.matches(content.decode("utf-8", "replace"))


def _digests(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"path": path, "sha256": sha256(content)} for path, content in sorted(files.items())]


def _named_hash(texts: Mapping[str, bytes]) -> str:
    """One hash of names and contents, in order."""
    lines = "".join(f"{sha256(content)}  {name}\n" for name, content in texts.items())
    return "sha256:" + sha256(lines.encode())
