"""What this tree was made of, and whether it still is that: from two files that the queue's tool
left beside this folder.

provenance.json: the release, the queue, and every patch and overlay file with its sha256.
tree.sha256: the sha256 of every file of the tree, as sha256sum prints it, by its name in upstream's
repository; `sha256sum tree.sha256` is the tree's hash.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

HERE = Path(__file__).parents[1]
RECORD, LISTING = HERE / "provenance.json", HERE / "tree.sha256"
# the folder that holds sglang/: python/ of a checkout, or site-packages
ROOT = Path(__file__).parents[4]
PREFIX, PACKAGE = "python/", "sglang"
GENERATED = "sglang/_version.py"  # written when a wheel is built
ALGORITHM, SHOWN = "sha256:", 12  # how a tree's hash begins, and how many of its digits are logged


@dataclass(frozen=True)
class Provenance:
    """What this tree was made of. version: the sglang release; release: the queue's own; patches:
    names, in order."""

    version: str = "unknown"
    release: str = "unknown (not built by the queue)"
    queue: str = "unknown"
    patches: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"sglang {self.version}, queue release {self.release}, {len(self.patches)} patches"


class Fault(str, enum.Enum):
    """How a file is not as the queue made it."""

    CHANGED = "changed"
    MISSING = "missing"
    ADDED = "added"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Verification:
    """Whether the files are those that the queue made. files: how many were compared; faults: by
    name below the folder that holds sglang/; tree: the hash of the listing, "sha256:<hex>"; reason:
    why nothing could be compared, else empty."""

    files: int = 0
    faults: tuple[tuple[str, Fault], ...] = ()
    tree: str = ""
    reason: str = ""

    @property
    def intact(self) -> bool:
        return not self.reason and not self.faults


def read() -> Provenance:
    """The record; "unknown" where there is none, or not in this form."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
        names = tuple(patch["name"].removesuffix(".patch") for patch in found["patches"])
        return Provenance(found["version"], str(found["release"]), found["queue"], names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Provenance()


def log_tree() -> None:
    """One line at INFO that says what this server is made of. Called where a server starts, in
    _set_envs_and_config of srt/entrypoints/engine.py, which comes right after its logging is set
    up. Never raises."""
    tree = tree_hash()
    logger.info(
        "Patched by the prefill graph queue: %s%s",
        read(),
        f", tree {tree[: len(ALGORITHM) + SHOWN]}" if tree else "",
    )


def log_plugin() -> None:
    """The entry point `prefill_graph_queue` of the group sglang.srt.plugins, from 0.5.11 on, where
    the release has such a list (srt/plugins/__init__.py, load_plugins). Every process of a server
    calls it first. It logs one line at INFO, and changes nothing. Never raises."""
    logger.info("The prefill graph queue's plugin only reports: %s, tree %s", read(), tree_hash())


def tree_hash() -> str:
    """The hash of the tree as it was made, "sha256:<hex>"; "" where no listing of it is there."""
    try:
        return ALGORITHM + hashlib.sha256(LISTING.read_bytes()).hexdigest()
    except OSError:
        return ""


def verify() -> Verification:
    """Compare every file with the listing. Compiled extensions are in no listing: they are the
    wheel's, and differ by platform."""
    try:
        wanted = dict(_listed(LISTING.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        return Verification(
            reason=(
                f"{LISTING.name} cannot be read ({type(error).__name__}): the queue's tool did not"
                " make this tree"
            )
        )
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*.py")
        if path.is_file()
    } - {GENERATED}
    faults = [
        (name, fault) for name, digest in wanted.items() if (fault := _fault(ROOT / name, digest))
    ]
    faults += [(name, Fault.ADDED) for name in here - wanted.keys()]
    return Verification(len(wanted), tuple(sorted(faults)), tree_hash())


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """(name below the folder that holds sglang/, sha256) of each of sglang's files in a listing.
    Raises ValueError."""
    for line in text.splitlines():
        digest, name = line.split("  ", 1)
        if name.startswith(f"{PREFIX}{PACKAGE}/"):
            yield name.removeprefix(PREFIX), digest


def _fault(path: Path, digest: str) -> Fault | None:
    try:
        content = (
            b"link to " + str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        )
    except OSError:
        return Fault.MISSING
    return None if hashlib.sha256(content).hexdigest() == digest else Fault.CHANGED


def lines(found: Verification) -> Iterator[str]:
    """The printed verification: one line, and one for each file that differs."""
    if found.reason:
        yield f"cannot be verified: {found.reason}"
        return
    yield f"tree: {found.tree}"
    if found.intact:
        yield f"{found.files} files are as the queue made them"
        return
    yield f"{len(found.faults)} files are not as the queue made them ({found.files} compared):"
    yield from (f"  {fault!s:8} {name}" for name, fault in found.faults)
