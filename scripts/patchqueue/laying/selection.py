"""What the queue lays on one pinned release: selected once for a command, and handed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .. import RELEASE
from ..files import record
from ..files.tree import hash_listing, hash_python, sha256
from ..hint import to_type
from ..outcome import Outcome, Refused
from ..queue.patchfile import Patch
from ..queue.series import OVERLAY_PATCH, PACKAGE, PROVENANCE, Queue, as_patch
from ..upstream.pins import Pin
from ..upstream.source import Source
from .place import Read, rendered
from .replay import Replay, replay


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
        rows = planned.rows
        return self._overlay_patch | {
            patch.name: rendered(patch, rows[patch.name]).content for patch in self.patches
        }

    def tree_after(self, pristine: Source) -> str:
        """The hash that the tree has with this selection on it, from the replay alone."""
        planned = self.replay(pristine.read)
        if planned.problems:
            raise Refused(planned.problems)
        laid = {path: sha256(content) for path, content in planned.files.items()}
        return hash_listing(pristine.listing() | laid)

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


def _digests(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"path": path, "sha256": sha256(content)} for path, content in sorted(files.items())]


def _named_hash(texts: Mapping[str, bytes]) -> str:
    """One hash of names and contents, in order."""
    lines = "".join(f"{sha256(content)}  {name}\n" for name, content in texts.items())
    return "sha256:" + sha256(lines.encode())
