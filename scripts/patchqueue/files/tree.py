"""The identity of a tree: a hash of its file names and contents.

A *listing* maps a path in upstream's git layout ("python/sglang/srt/utils.py") to the sha256 of the
file's bytes, in hex. The tree hash is the sha256 of `sha256sum`'s own output over sglang's Python
files, sorted by path, less the generated one. Anyone can check it without this tool:

    find python/sglang -name '*.py' ! -path '*/sglang/_version.py' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum
"""  # noqa: E501

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PREFIX = "python/"  # of git's layout: below it lies what a wheel and site-packages have
SGLANG = "python/sglang/"
GENERATED = "python/sglang/_version.py"  # written when a wheel is built; a git checkout has none
# the tree's own listing, for `--verify` in place: no tree can list it
LISTING = "python/sglang/srt/prefill_graph/tree.sha256"
# beside it: what the queue changed in upstream's files, and what others had edited there
LAID = "python/sglang/srt/prefill_graph/laid.json"

# how sha256sum writes these characters in a name
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
UNESCAPED = {escaped: chr(character) for character, escaped in ESCAPES.items()}
ESCAPED = re.compile(r"\\[\\nr]")
LISTED = re.compile(r"(?m)^(\\?)([0-9a-f]{64})  (.+)$")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(path: Path) -> str:
    """The sha256 of a file (a link is not followed: it counts by its target's name), "" where there
    is none, else what it is."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(mode):
        return sha256(b"link to " + os.fsencode(path.readlink()))
    return sha256(path.read_bytes()) if stat.S_ISREG(mode) else "no plain file"


def is_part_of_tree(path: str) -> bool:
    """Compiled extensions differ per platform and byte code per run: neither is part of a tree's
    identity, nor are its own records."""
    compiled = path.endswith((".so", ".pyc")) or "/__pycache__/" in path
    return not compiled and path not in (LISTING, LAID)


def to_sha256sum(listing: Mapping[str, str]) -> bytes:
    """A listing as sha256sum prints it, sorted by path: what a tree's LISTING file holds. A line
    begins with a backslash where its name has escapes."""
    rows = ((path.translate(ESCAPES), path, each) for path, each in sorted(listing.items()))
    lines = (f"{'' if name == path else chr(92)}{each}  {name}\n" for name, path, each in rows)
    return "".join(lines).encode("utf-8", "surrogateescape")


def from_sha256sum(content: bytes) -> dict[str, str]:
    """The listing that `to_sha256sum` wrote, without lines of another form."""
    rows = LISTED.findall(content.decode("utf-8", "surrogateescape"))
    return {
        ESCAPED.sub(lambda each: UNESCAPED[each[0]], name) if escaped else name: sha256_hex
        for escaped, sha256_hex, name in rows
    }


def own_listing(listing: Mapping[str, str]) -> dict[str, str]:
    """The part that a tree's LISTING has: sglang's files, less the generated one."""
    return {path: each for path, each in sglang_part(listing).items() if path != GENERATED}


def sglang_part(listing: Mapping[str, str]) -> dict[str, str]:
    """The part below python/sglang/, without the tests beside it."""
    return {path: digest for path, digest in listing.items() if path.startswith(SGLANG)}


def names(paths: Iterable[str]) -> tuple[str, ...]:
    """Files in git's layout by their names below the folder that holds sglang/."""
    return tuple(path.removeprefix(PREFIX) for path in paths)


def python_part(listing: Mapping[str, str]) -> dict[str, str]:
    """The part that wheels, git tag and installed package share: sglang's own Python files."""
    return {path: each for path, each in own_listing(listing).items() if path.endswith(".py")}


def hash_python(listing: Mapping[str, str]) -> str:
    """The tree hash, as "sha256:<hex>"."""
    return "sha256:" + sha256(to_sha256sum(python_part(listing)))


def list_folder(folder: Path) -> dict[str, str]:
    """The listing of a work tree on disk."""
    return dict(_list(folder / "python", "python"))


def list_package(site: Path) -> dict[str, str]:
    """The listing of the sglang/ in a folder of packages, by the names in git's layout."""
    return dict(_list(site / "sglang", "python/sglang"))


def _list(folder: Path, prefix: str) -> Iterator[tuple[str, str]]:
    for place, folders, files in os.walk(folder):  # rglob takes twice as long for 4,600 files
        for each in (*files, *folders):
            path = os.path.join(place, each)
            name, mode = f"{prefix}{path[len(str(folder)) :]}", os.lstat(path).st_mode
            if stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and is_part_of_tree(name)):
                yield name, digest(Path(path))


def differing(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """The paths that are not the same in both, sorted."""
    return sorted(path for path in left.keys() | right.keys() if left.get(path) != right.get(path))
