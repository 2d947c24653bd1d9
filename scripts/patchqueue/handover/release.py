"""The files of a release of the queue, in dist/release-N/: wheels, patch files, a page of links for
`pip install --find-links`, and SHA256SUMS. The same queue gives the same bytes."""

from __future__ import annotations

import html
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from .. import RELEASE
from ..files import atomic, run
from ..outcome import Refused, counted, some
from ..upstream.pins import Pin
from ..upstream.source import file_sha256
from ..wheels import build, local_version
from .backport import write_patch

LOG = logging.getLogger(__name__)

LINKS, SUMS = "index.html", "SHA256SUMS"
TAG = f"pcg-{RELEASE}"
QUEUE = ("overlay", "patches", "series", "upstream/pins.toml")  # what the tag fixes


def make(root: Path, chosen: Sequence[Pin]) -> Path:
    """Build the wheels and patch files of some releases of sglang into dist/release-N/, whole or
    not at all. Raises Refused if the tag of this number has another content."""
    _refuse_other_content(root)
    folder = root / "dist" / f"release-{RELEASE}"
    unfinished = folder.with_name(f".{folder.name}.new")
    with atomic.locked(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for pin in chosen:
            _add(root, pin, unfinished)
        (unfinished / LINKS).write_text(_links(unfinished), encoding="utf-8")
        files = sorted(unfinished.iterdir(), key=lambda path: path.name)
        sums = "".join(f"{file_sha256(path)}  {path.name}\n" for path in files)
        (unfinished / SUMS).write_text(sums, encoding="utf-8")  # as `sha256sum *` prints them
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
    return folder


def _refuse_other_content(root: Path) -> None:
    """Raise Refused if this number is tagged, and the queue was changed since."""
    if not (root / ".git").exists() or not run.git(root, "tag", "--list", TAG).stdout:
        return
    changed = run.git(root, "diff", "--name-only", "-z", TAG, "--", *QUEUE).stdout
    added = run.git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *QUEUE).stdout
    names = (changed + added).decode("utf-8", "replace").split("\0")[:-1]
    if names:
        step = f"check out {TAG}, or raise RELEASE in scripts/patchqueue/__init__.py"
        what = f"was tagged with another content of {some(names)}"
        raise Refused.of("released", f"release {RELEASE}", what, step)


def _add(root: Path, pin: Pin, folder: Path) -> None:
    """Write a release's wheels and patch file."""
    patch = folder / f"sglang-{local_version(pin)}.patch"
    write_patch(root, pin, None, patch)
    for wheel in pin.wheels:
        build(root, pin, wheel, None, folder)
    LOG.info(f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} and {patch.name}")


def _links(folder: Path) -> str:
    """A page with a link to each wheel beside it, and its sha256, which pip and uv compare."""
    rows = [
        f'<a href="{quote(path.name)}#sha256={file_sha256(path)}">'
        f"{html.escape(path.name)}</a><br>\n"
        for path in sorted(folder.glob("*.whl"))
    ]
    title = f"sglang, release {RELEASE} of the patch queue"
    return f"<!DOCTYPE html>\n<title>{title}</title>\n{''.join(rows)}"
