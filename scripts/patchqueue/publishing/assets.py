"""The files of a release of the queue, in dist/release-N/: wheels, their METADATA beside them,
patch files, the changes for users, and SHA256SUMS over all of it.

The same queue gives the same bytes.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from .. import RELEASE
from ..files.locking import locked
from ..handover import onefile
from ..hint import counted, to_type
from ..laying.apply import load_queue
from ..laying.selection import select
from ..outcome import Refused
from ..queue.released import Asset, Hashes, Revision
from ..queue.released import Wheel as Published
from ..queue.series import Queue
from ..upstream import source
from ..upstream.pins import Pin, Pins, Wheel
from ..wheels import build
from .wheelfile import BESIDE, describe

LOG = logging.getLogger(__name__)

CHANGES, SUMS = "CHANGES.md", "SHA256SUMS"


@dataclass(frozen=True)
class Choice:
    """Which wheels are made. pins: the releases; pythons, machines: as build.Target has them, none
    for all; among: names of files that a cut release has, None where it is not cut."""

    pins: Sequence[Pin]
    pythons: Sequence[str] = ()
    machines: Sequence[str] = ()
    among: frozenset[str] | None = None

    def wheels(self, pin: Pin) -> list[Wheel]:
        """The pin's wheels that are meant; none where no patch is for it."""
        if pin.no_patches:
            return []
        meant = [wheel for wheel in pin.wheels if self._takes(wheel)]
        return [
            wheel
            for wheel in meant
            if self.among is None or build.name_of(wheel, pin) in self.among
        ]

    def _takes(self, wheel: Wheel) -> bool:
        tags = parse_wheel_filename(wheel.file)[3]
        pythons = self.pythons or {_python(tag.interpreter) for tag in tags}
        machines = self.machines or {_machine(tag.platform) for tag in tags}
        return any(
            build.Target(python, machine).takes(wheel) for python in pythons for machine in machines
        )


def _python(interpreter: str) -> str:
    """`cp312` is 3.12; `py3` fits every one."""
    digits = interpreter.lstrip("cpy")
    return f"{digits[0]}.{digits[1:]}"


def _machine(platform: str) -> str:
    """`manylinux_2_34_x86_64` is x86_64; `any` fits every one."""
    return next((name for name in ("x86_64", "aarch64") if platform.endswith(name)), platform)


@dataclass(frozen=True)
class Made:
    """The finished folder. revisions: what was made for each release; bytes: of all files."""

    folder: Path
    revisions: tuple[Revision, ...]
    bytes: int

    @property
    def assets(self) -> dict[str, Asset]:
        return {
            asset.file: asset
            for each in self.revisions
            for asset in (*([each.patch] if each.patch else []), *each.wheels)
        }


def today(root: Path, pins: Pins) -> list[Hashes]:
    """What the queue lays on every pinned release, by hash; no release is read for it."""
    queue = load_queue(root)
    selections = [select(queue, pin) for pin in pins.all]
    return [
        Hashes(each.pin.version, each.stack_sha256, each.effect_sha256)
        for each in selections
        if each.patches
    ]


def make(root: Path, choice: Choice, changes: str) -> Made:
    """Build what is chosen into dist/release-N/, whole or not at all; what was there is replaced.

    changes: what CHANGES.md says. Raises Refused where nothing is chosen, or where build or replay
    refuse.
    """
    pins = [pin for pin in choice.pins if choice.wheels(pin)]
    if not pins:
        what = "no wheel is for these words" + (" in what was cut" if choice.among else "")
        step = f"{to_type('release', '--help')} says what they mean"
        raise Refused.of("nothing-to-build", "release", what, step)
    folder = root / "dist" / f"release-{RELEASE}"
    aside = folder.with_name(f".{folder.name}.new")
    with locked(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        queue = load_queue(root)
        revisions = tuple(_one(root, queue, pin, choice, aside) for pin in pins)
        (aside / CHANGES).write_text(changes, encoding="utf-8")
        (aside / SUMS).write_text(sums(aside))
        size = sum(path.stat().st_size for path in aside.iterdir())
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(aside, folder)
    return Made(folder, revisions, size)


def _one(root: Path, queue: Queue, pin: Pin, choice: Choice, aside: Path) -> Revision:
    """One release's patch file and wheels, and what is recorded of them."""
    selection = select(queue, pin)
    name = f"sglang-{build.local_version(pin)}.patch"
    patch = onefile.write(root, pin, None, None, aside / name)
    wheels = tuple(_wheels(root, pin, choice.wheels(pin), aside))
    LOG.info(f"{pin.tag}: {counted(len(wheels), 'wheel')} and {name}")
    return Revision(
        pin.version,
        selection.stack_sha256,
        selection.effect_sha256,
        Asset(name, patch.sha256),
        wheels,
    )


def _wheels(root: Path, pin: Pin, wheels: Iterable[Wheel], aside: Path) -> Iterator[Published]:
    for wheel in wheels:
        built = build.build_wheel(root, pin, wheel, None, aside)
        described = describe(built.path)
        (aside / f"{built.path.name}{BESIDE}").write_bytes(described.metadata)
        yield described.wheel


def sums(folder: Path) -> str:
    """What `sha256sum *` prints there, in the order of names."""
    names = sorted(path.name for path in folder.iterdir() if path.name != SUMS)
    return "".join(f"{source.file_sha256(folder / name)}  {name}\n" for name in names)
