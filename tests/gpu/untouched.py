"""Make the release's own package out of a patched one, as a plan says. Standard library only.

lab/bundle/untouched.py lays the plan and the release's own files: untouched/ of a bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

PLAN, FILES = "plan.json", "files"
PACKAGE, GENERATED = "sglang", "sglang/_version.py"


class Unmade(Exception):
    """The tree cannot be made; its text says why."""


def make(tree: Path, folder: Path, out: Path) -> str:
    """Lay the untouched package in `out`, which is replaced. Returns its tree hash. tree: the
    folder that holds the patched sglang/, alone or among other packages. folder: what holds the
    plan, which names the hash that the release is pinned by. Raises Unmade where a file is missing,
    or where the result is not the release."""
    if not (folder / PLAN).is_file():
        what = "the bundle was packed by an earlier tool, pack it again"
        raise Unmade(f"{folder} has no {PLAN}: {what}")
    plan = json.loads((folder / PLAN).read_text())
    shutil.rmtree(out, ignore_errors=True)
    gone = {*plan["remove"], *plan["replace"]}
    for name in _files(tree, PACKAGE):  # its .dist-info is the release's own, under another name
        if name not in gone:
            _link(tree / name, out / name)
    for name, digest in plan["replace"].items():
        if not (folder / FILES / name).is_file() or _sha256(folder / FILES / name) != digest:
            raise Unmade(f"{folder / FILES / name} is not the release's own")
        _link(folder / FILES / name, out / name)
    found = tree_hash(out)
    if found != plan["tree"]:
        raise Unmade(f"the tree without the queue is {found}, the release is {plan['tree']}")
    return found


def tree_hash(tree: Path) -> str:
    """The hash of a package's Python files as scripts/patchqueue/files/tree.py defines it."""
    names = sorted(name for name in _files(tree, PACKAGE) if name.endswith(".py"))
    own = (name for name in names if name != GENERATED)
    listing = "".join(f"{_sha256(tree / name)}  python/{name}\n" for name in own)
    return "sha256:" + hashlib.sha256(listing.encode()).hexdigest()


def _files(tree: Path, top: str) -> Iterator[str]:
    """The files below a folder of the tree, as names in a wheel; never byte code."""
    for path in (tree / top).rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path.relative_to(tree).as_posix()


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
