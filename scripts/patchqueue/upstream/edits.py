"""A release that carries edits of others: known by the files that they left alone, and what they
edited.

Forks and RL frameworks pin a release and patch it. Two pinned releases that follow each other have
at most three quarters of their Python files in common (measured on all pins); a fork keeps nearly
all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..files.tree import (
    GENERATED,
    PREFIX,
    differing,
    list_package,
    names,
    sglang_part,
    sha256,
    to_sha256sum,
)
from ..hint import some, to_type
from ..outcome import Refused
from . import source
from .pins import Pin
from .source import Source

FEW = 20  # so many files of others are never too many
SHARE = 8  # one in so many of the release's files may be edited beside ours


@dataclass(frozen=True)
class Edits:
    """Edits of others in a release: paths in git's layout, sorted. removed: files that it has no
    more."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted((*self.changed, *self.added, *self.removed)))

    def as_record(self) -> dict[str, list[str]]:
        """For a record: by kind, below the folder that holds sglang/."""
        kinds = {"changed": self.changed, "added": self.added, "removed": self.removed}
        return {kind: [*names(paths)] for kind, paths in kinds.items()}


def between(release: Mapping[str, str], present: Mapping[str, str], whole: bool) -> Edits:
    """The differences from the release's listing.

    whole: it lists every file that belongs there. Else Python files alone count as added and as
    removed: a wheel and a git tag differ in other files.
    """
    paths = [path for path in differing(release, present) if path != GENERATED]
    counted = [path for path in paths if whole or path.endswith(".py")]
    return Edits(
        tuple(path for path in paths if path in release and path in present),
        tuple(path for path in counted if path not in release),
        tuple(path for path in counted if path not in present),
    )


def refuse_other(
    where: str, pin: Pin, release: Mapping[str, str], edits: Edits, ours: Collection[str]
) -> None:
    """Raise Refused where so many files that the queue does not touch were edited or removed that
    the files are another release's."""
    free = [path for path in release if path.endswith(".py") and path not in ours]
    unlike = {*edits.changed, *edits.removed}.intersection(free)
    if len(unlike) <= max(FEW, len(free) // SHARE):
        return
    what = (
        f"is too unlike {pin.tag}: {len(unlike)} of the {len(free)} Python files that the queue"
        f" does not touch differ, as {some(names(edits.paths))}"
    )
    step = (
        "name the release that it is made of: --release RELEASE; of a commit that is no release,"
        f" {to_type('rebase', 'RELEASE --from CHECKOUT')} says what fits"
    )
    raise Refused.of("unlike-release", where, what, step)


def pristine(pin: Pin, repository: Path | None) -> Source:
    """The release's own files: of the cache, else of its tag in the repository, else of the package
    index. Raises Refused where none of these has them."""
    if repository is not None and (repository / ".git").exists() and not source.is_cached(pin):
        try:
            return source.fetch(pin, str(repository))
        except Refused:
            pass  # no such tag there, or a moved one
    return source.fetch(pin, None)


@dataclass(frozen=True)
class Edited:
    """A tree in a folder that holds sglang/, with edits of others: in place of a Source where the
    queue is applied to it."""

    pin: Pin
    site: Path
    name: str
    edits: Edits
    listed: Mapping[str, str] = field(repr=False)

    @property
    def origin(self) -> dict[str, str]:
        """The source, as a tree's record names it."""
        digest = sha256(to_sha256sum(self.listed))
        return {"kind": "edited", "name": self.name, "sha256": digest}

    def read(self, path: str) -> bytes | None:
        """A file by its path in git's layout, or None where the tree has none."""
        file = self.site / path.removeprefix(PREFIX)
        return file.read_bytes() if path in self.listed and file.is_file() else None

    def listing(self) -> dict[str, str]:
        return dict(self.listed)

    def unpack(self, folder: Path) -> dict[str, str]:
        """Copy the files into `folder`, and return their listing."""
        written = {}
        for path in sorted(self.listed):
            content = self.read(path)
            if content is None:  # a link: no patch can touch one
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            written[path] = sha256(content)
        return written


def open_tree(pin: Pin, folder: Path, ours: Collection[str]) -> Edited:
    """The release with edits of others in a folder: a checkout, or the folder that holds sglang/.

    ours: the files that the queue touches. Raises Refused where there is no sglang in it, or
    another release.
    """
    site = folder / "python" if (folder / "python/sglang").is_dir() else folder
    if not (site / "sglang").is_dir():
        what = "holds no sglang/ and no python/sglang/"
        step = to_type("apply", pin.tag, "--base CHECKOUT")
        raise Refused.of("no-sglang", str(folder), what, step)
    present = list_package(site)
    original = pristine(pin, site.parent)
    release = sglang_part(original.listing())
    edits = between(release, present, whole=False)
    refuse_other(str(folder), pin, release, edits, ours)
    return Edited(pin, site, folder.resolve().name, edits, present)
