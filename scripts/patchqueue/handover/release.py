"""The files of a release of the queue, in dist/release-N/: wheels, a patch file for each release of
sglang, a page of links for `pip install --find-links`, and SHA256SUMS over all of it.

The same queue gives the same bytes. The record of a published release is its git tag.
"""

from __future__ import annotations

import html
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.utils import parse_wheel_filename

from .. import RELEASE
from ..files import run
from ..files.atomic import locked
from ..hint import counted, some, to_type
from ..outcome import Refused
from ..upstream import source
from ..upstream.pins import Pin, Wheel
from ..wheels import build
from . import onefile

LOG = logging.getLogger(__name__)

LINKS, SUMS = "index.html", "SHA256SUMS"
TAG = f"pcg-{RELEASE}"
QUEUE = ("overlay", "patches", "series", "upstream/pins.toml")  # what the tag fixes


@dataclass(frozen=True)
class Choice:
    """Which wheels are made.

    pins: the releases; pythons ("3.12"), machines ("x86_64"): for which the wheels are, empty for
    all.
    """

    pins: Sequence[Pin]
    pythons: Sequence[str] = ()
    machines: Sequence[str] = ()

    def wheels(self, pin: Pin) -> list[Wheel]:
        """The chosen wheels of a release; none if no patch is for the release."""
        return [] if pin.no_patches else [wheel for wheel in pin.wheels if self._takes(wheel)]

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
    """The finished folder. wheels: how many; versions: as pip shows them; bytes: of all files."""

    folder: Path
    wheels: int
    versions: tuple[str, ...]
    bytes: int


def make(root: Path, choice: Choice) -> Made:
    """Build the chosen wheels and patch files into dist/release-N/, whole or not at all; a folder
    that is there is replaced.

    Raises Refused if nothing is chosen, if the tag of this number has another content, or if a
    build or a patch file is refused.
    """
    _refuse_other_content(root)
    pins = [pin for pin in choice.pins if choice.wheels(pin)]
    if not pins:
        step = f"{to_type('release', '--help')} says what they mean"
        raise Refused.of("nothing-to-build", "release", "no wheel is for these words", step)
    folder = root / "dist" / f"release-{RELEASE}"
    unfinished = folder.with_name(f".{folder.name}.new")
    with locked(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        wheels = sum(_add(root, pin, choice.wheels(pin), unfinished) for pin in pins)
        (unfinished / LINKS).write_text(_links(unfinished), encoding="utf-8")
        (unfinished / SUMS).write_text(_sums(unfinished), encoding="utf-8")
        size = sum(path.stat().st_size for path in unfinished.iterdir())
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
    return Made(folder, wheels, tuple(build.local_version(pin) for pin in pins), size)


def _refuse_other_content(root: Path) -> None:
    """Raise Refused if the repository has the tag of this number, and the queue was changed
    since: two files of one name would differ."""
    if not (root / ".git").exists() or not run.git(root, "tag", "--list", TAG).stdout:
        return
    changed = run.git(root, "diff", "--name-only", "-z", TAG, "--", *QUEUE).stdout
    added = run.git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *QUEUE).stdout
    names = (changed + added).decode("utf-8", "replace").split("\0")[:-1]
    if names:
        step = f"check out {TAG}, or raise RELEASE in scripts/patchqueue/__init__.py"
        what = f"was tagged with another content of {some(names)}"
        raise Refused.of("released", f"release {RELEASE}", what, step)


def _add(root: Path, pin: Pin, wheels: Sequence[Wheel], folder: Path) -> int:
    """Write a release's wheels and patch file; how many wheels."""
    patch = folder / f"sglang-{build.local_version(pin)}.patch"
    onefile.write(root, pin, None, None, patch)
    for wheel in wheels:
        build.build_wheel(root, pin, wheel, None, folder)
    LOG.info(f"{pin.tag}: {counted(len(wheels), 'wheel')} and {patch.name}")
    return len(wheels)


def _links(folder: Path) -> str:
    """A page with a link to each wheel beside it, and its sha256, which pip and uv compare."""
    rows = [
        f'<a href="{quote(path.name)}#sha256={source.file_sha256(path)}">'
        f"{html.escape(path.name)}</a><br>\n"
        for path in sorted(folder.glob("*.whl"))
    ]
    title = f"sglang, release {RELEASE} of the patch queue"
    return f"<!DOCTYPE html>\n<title>{title}</title>\n{''.join(rows)}"


def _sums(folder: Path) -> str:
    """What `sha256sum *` prints there, in the order of names."""
    names = sorted(path.name for path in folder.iterdir())
    return "".join(f"{source.file_sha256(folder / name)}  {name}\n" for name in names)
