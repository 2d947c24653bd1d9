"""The queue on a release as one patch file; and the files of a release of the queue, in
dist/release-N/: wheels, a patch file for each release of sglang, a page of links for `pip install
--find-links`, and SHA256SUMS over all of it.

A patch file is for `git apply` and `patch -p1` in the repository's root. Its hunks have three lines
of the tree's own context. The hashes of the files before and after are in it, so that `git apply
--3way` can lay out a conflict.

The same queue gives the same bytes. The record of a published release is its git tag.
"""

from __future__ import annotations

import html
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from .. import RELEASE
from ..applying.apply import load_queue
from ..applying.matching import Read
from ..applying.own_changes import NONE, in_git
from ..applying.selection import Selection, select, settle
from ..files import atomic, run
from ..files.tree import hash_python, sha256
from ..outcome import Refused, counted, some
from ..queue.patchfile import CONTEXT
from ..upstream.pins import Pin
from ..upstream.release import Edited, open_tree
from ..upstream.source import Source, fetch, file_sha256
from ..wheels import build, local_version

LOG = logging.getLogger(__name__)

LINKS, SUMS = "index.html", "SHA256SUMS"
TAG = f"pcg-{RELEASE}"
QUEUE = ("overlay", "patches", "series", "upstream/pins.toml")  # what the tag fixes


@dataclass(frozen=True)
class PatchFile:
    """The written file. changed, added: how many files it changes and adds; edited: how many files
    of its base others had edited; tree: the hash of the tree with it."""

    path: Path
    sha256: str
    patches: int
    changed: int
    added: int
    edited: int
    tree: str


def write_patch(
    root: Path, pin: Pin, base: Path | None, out: Path, only: str = "", without: Sequence[str] = ()
) -> PatchFile:
    """Write the file `out`, whole or not at all. only: the profile whose patches it has, "" for
    every patch; without: patches that are left out.

    base: a tree with this release and edits of others, that it is to be laid on. Raises Refused
    where no patch is for the release, or a hunk does not fit.
    """
    selection = select(load_queue(root, only), pin, without)
    tree: Source | Edited = open_tree(pin, base, selection.touched) if base else fetch(pin, None)
    if base:
        step = "change one of the two so that both fit, or merge a branch of backport into it"
        selection = settle(selection, tree.read, str(base), step)
    planned = selection.replay(tree.read)
    if planned.problems:
        raise Refused(planned.problems)
    edits = tree.edits if isinstance(tree, Edited) else NONE
    files = dict(planned.files)
    after = tree.listing() | {path: sha256(content) for path, content in files.items()}
    files |= in_git(planned.files, tree.read, after, edits)
    content = _head(selection).encode() + diff(files, tree.read)
    atomic.write(out, content)
    new = sum(tree.read(path) is None for path in files)
    counts = len(selection.patches), len(files) - new, new, len(edits.paths), hash_python(after)
    return PatchFile(out, sha256(content), *counts)


def _head(selection: Selection) -> str:
    """What stands before the first file: git and patch pass over it."""
    pin, queue = selection.pin, selection.queue
    names = [(patch.name, queue.header(patch.name).get("Subject")) for patch in selection.patches]
    version = local_version(pin, queue.profile)
    return (
        f"The prefill graph queue for sglang {pin.version}, {version}:"
        f" {counted(len(names), 'patch', 'patches')}.\n"
        "In the root of a checkout: git apply FILE; elsewhere: patch -p1 < FILE.\n\n"
        + "".join(f"  {name.removesuffix('.patch')}: {subject}\n" for name, subject in names)
        + "\n"
    )


def diff(files: Mapping[str, bytes], read: Read) -> bytes:
    """What makes these files of those that `read` gives, in git's form, sorted by path."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-diff-") as name:
        space = Path(name)
        run.own_git(space, "init", "-q")
        for content_of in (read, files.get):
            for path in files:
                if (content := content_of(path)) is not None:
                    (space / path).parent.mkdir(parents=True, exist_ok=True)
                    (space / path).write_bytes(content)
            run.own_git(space, "add", "--all", "--force")
            if content_of is read:
                before = run.own_git(space, "write-tree").stdout.decode().strip()
        words = ("--cached", "--patch", "--full-index", "--no-renames", "--text", f"-U{CONTEXT}")
        return run.own_git(space, "diff-index", *words, before).stdout


@dataclass(frozen=True)
class Made:
    """The finished folder. wheels: how many; versions: as pip shows them; bytes: of all files."""

    folder: Path
    wheels: int
    versions: tuple[str, ...]
    bytes: int


def make(root: Path, chosen: Sequence[Pin]) -> Made:
    """Build the wheels and patch files of some releases of sglang into dist/release-N/, whole or
    not at all; a folder that is there is replaced.

    Raises Refused if the tag of this number has another content, or if a build or a patch file is
    refused.
    """
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
        size = sum(path.stat().st_size for path in unfinished.iterdir())
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
    wheels = sum(len(pin.wheels) for pin in chosen)
    return Made(folder, wheels, tuple(local_version(pin) for pin in chosen), size)


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
