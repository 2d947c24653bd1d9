"""The queue on a release as one file for `git apply` and `patch -p1`: overlay and patches, relative
to the repository's root.

Its hunks have three lines of the tree's own context. The hashes of the files before and after are
in it, so that `git apply --3way` can lay out a conflict.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import atomic
from ..files.tree import hash_python, sha256
from ..hint import counted
from ..laying.apply import begin, load_queue
from ..laying.matching import Read, split_lines
from ..laying.own_changes import NONE, in_git
from ..laying.selection import Selection, select
from ..outcome import Refused
from ..queue.patchfile import CONTEXT, NO_NEWLINE
from ..upstream.edits import Edited
from ..upstream.pins import Pin
from ..wheels.build import local_version

NEW = "0" * 40  # git's name for no file


@dataclass(frozen=True)
class Written:
    """The file. changed, added: how many files it changes and adds; edited: how many files of its
    base others had edited; tree: the hash of the tree with it."""

    pin: Pin
    path: Path
    sha256: str
    patches: int
    changed: int
    added: int
    edited: int = 0
    tree: str = ""


def write(
    root: Path, pin: Pin, base: Path | None, out: Path, only: str = "", without: Sequence[str] = ()
) -> Written:
    """Write the file `out`, whole or not at all. only: the profile whose patches it has, "" for
    every patch; without: patches that are left out.

    base: a tree with this release and edits of others, that it is to be laid on. Raises Refused
    where no patch is for the release, or a hunk does not fit.
    """
    tree, selection = begin(select(load_queue(root, only), pin, without), None, base)
    planned = selection.replay(tree.read)
    if planned.problems:
        raise Refused(planned.problems)
    edits = tree.edits if isinstance(tree, Edited) else NONE
    files = dict(planned.files)
    after = tree.listing() | {path: sha256(content) for path, content in files.items()}
    files |= in_git(planned.files, tree.read, after, edits)
    content = (_head(selection) + diff(files, tree.read)).encode("utf-8", "surrogateescape")
    atomic.write(out, content)
    new = sum(tree.read(path) is None for path in files)
    counts = len(selection.patches), len(files) - new, new, len(edits.paths), hash_python(after)
    return Written(pin, out, sha256(content), *counts)


def _head(selection: Selection) -> str:
    """What stands before the first file: git and patch pass over it."""
    pin, queue = selection.pin, selection.queue
    names = [(patch.name, queue.header(patch.name).get("Subject")) for patch in selection.patches]
    return (
        f"The prefill graph queue for sglang {pin.version}, {local_version(pin, queue.profile)}:"
        f" {counted(len(names), 'patch', 'patches')}.\n"
        "In the root of a checkout: git apply FILE; elsewhere: patch -p1 < FILE.\n\n"
        + "".join(f"  {name.removesuffix('.patch')}: {subject}\n" for name, subject in names)
        + "\n"
    )


def diff(files: Mapping[str, bytes], read: Read) -> str:
    """What makes these files of those that `read` gives, in git's form, sorted by path."""
    return "".join(
        "".join(_one(path, read(path), content))
        for path, content in sorted(files.items())
        if read(path) != content
    )


def _one(path: str, before: bytes | None, after: bytes) -> Iterator[str]:
    yield f"diff --git a/{path} b/{path}\n"
    if before is None:
        yield f"new file mode 100644\nindex {NEW}..{blob(after)}\n"
    else:
        yield f"index {blob(before)}..{blob(after)}\n"
    old, new = (
        split_lines((text or b"").decode("utf-8", "surrogateescape")) for text in (before, after)
    )
    names = ("/dev/null" if before is None else f"a/{path}", f"b/{path}")
    for line in difflib.unified_diff(old, new, *names, n=CONTEXT):
        yield line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n"


def blob(content: bytes) -> str:
    """git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
