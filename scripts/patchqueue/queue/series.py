"""The queue: the ordered series with its guards, the patches it names, and the overlay files they
need; and the rules about it as a whole."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ..files.tree import PREFIX, SGLANG, is_part_of_tree
from ..outcome import Problem
from . import patchfile
from .header import Header
from .patchfile import Patch

FILE = Path("series")
PATCH_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*(?:@[0-9][a-z0-9.]*)?\.patch")
# the overlay, as quilt sees it: one patch that makes new files, generated for each tree
OVERLAY_PATCH = "overlay.patch"

PACKAGE = "python/sglang/srt/prefill_graph/"  # the overlay's own package
# generated for each tree: what it was made of, without a date or a place
PROVENANCE = PACKAGE + "provenance.json"
IMPORT = re.compile(
    r"(?m)^[ \t]*(?:from\s+(\.*)([\w.]*)\s+import\s+(?:\(([^)]*)|(.*))|import\s+(.*))"
)


@dataclass(frozen=True)
class Entry:
    """One line of the series. name: path below patches/; guard: the sglang releases it is for,
    text: as written; line: 1-based."""

    name: str
    guard: SpecifierSet
    text: str
    line: int

    @property
    def base(self) -> str:
        """The name that all variants share: `nsa/route@0.5.8.patch` -> `nsa/route.patch`."""
        return re.sub(r"@[^/]*\.patch$", ".patch", self.name)

    def is_for(self, version: Version) -> bool:
        return self.guard.contains(version, prereleases=True)


@dataclass(frozen=True)
class Queue:
    """Everything that the project applies to a release. overlay: path in the tree -> content;
    profile: the one whose patches it has, "" for all; whole: no patch is left out."""

    entries: tuple[Entry, ...]
    patches: dict[str, Patch]
    overlay: dict[str, bytes]
    profile: str = ""
    whole: bool = True

    def select(self, version: Version) -> list[Patch]:
        """The patches for one release, in the series' order."""
        if version not in self._selected:
            self._selected[version] = [
                self.patches[entry.name]
                for entry in self.entries
                if entry.name in self.patches and entry.is_for(version)
            ]
        return [*self._selected[version]]

    @cached_property
    def _selected(self) -> dict[Version, list[Patch]]:
        """By release, what it was asked for: the matrix asks for each of its cells."""
        return {}

    def base(self, patch: str) -> str:
        """The name that all variants of a patch share."""
        return next(entry.base for entry in self.entries if entry.name == patch)

    def header(self, patch: str) -> Header:
        """A patch's own header, or, for a variant, that of the patch it is a variant of."""
        own = self.patches[patch].header
        base = self.patches.get(own.get("Variant-Of"))
        return base.header if base else own

    def only(self, profile: str) -> Queue:
        """The queue with the patches of one profile; all of it for ""."""
        if not profile:
            return self
        kept = (one for one in self.entries if profile in self.header(one.name).profiles)
        return replace(self, entries=tuple(kept), profile=profile, whole=False)

    def overlay_for(self, patches: Iterable[Patch]) -> dict[str, bytes]:
        """The overlay files that these patches import or name, and what these import."""
        needed: set[str] = set()
        for patch in patches:
            named = self.header(patch.name).overlay
            needed |= imported(patch)
            needed |= {path for path in self.overlay for name in named if is_named(name, path)}
        brought = closure(needed, self.overlay)
        return {path: content for path, content in self.overlay.items() if path in brought}

    def unnamed_overlay(self) -> list[str]:
        """Overlay files that no patch needs."""
        return sorted(self.overlay.keys() - self.overlay_for(self.patches.values()).keys())


def read(root: Path) -> tuple[Queue, list[Problem]]:
    """The queue below `root`, as far as it is readable, and what is wrong with the series."""
    try:
        # not read_text: it turns CRLF into LF unseen
        text = (root / FILE).read_bytes().decode("utf-8")
    except OSError:
        step = f"run it in the project's folder, not {root}"
        problem = Problem("no-series", str(FILE), "does not exist, or is no file", step)
        return Queue((), {}, {}), [problem]
    except UnicodeDecodeError as error:
        problem = Problem("not-utf-8", str(FILE), f"byte {error.start} is not UTF-8")
        return Queue((), {}, {}), [problem]
    entries, problems = parse(text)
    patches, wrong = _read_patches(root / "patches", entries)
    queue = Queue(tuple(entries), patches, read_overlay(root / "overlay"))
    return queue, [*problems, *wrong]


def _read_patches(folder: Path, entries: Sequence[Entry]) -> tuple[dict[str, Patch], list[Problem]]:
    """The patches that the series lists, and what is wrong with the folder."""
    patches: dict[str, Patch] = {}
    problems: list[Problem] = []
    for entry in entries:
        path = folder / entry.name
        if not path.is_file() or path.is_symlink():
            what = f"patches/{entry.name} is not there, or is no plain file"
            problems.append(Problem("missing-patch", f"{FILE}:{entry.line}", what))
            continue
        patch, wrong = patchfile.read(entry.name, path.read_bytes())
        problems += wrong
        patches |= {entry.name: patch} if patch else {}
    listed = {entry.name for entry in entries}
    step = "add a line `PATH  # GUARD` to series, or remove the file"
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in listed:
            problems.append(
                Problem("unlisted-file", f"patches/{name}", "is not in the series", step)
            )
    return patches, problems


def read_overlay(folder: Path) -> dict[str, bytes]:
    """The overlay's files, by the path they get in the tree."""
    files = (
        (path.relative_to(folder).as_posix(), path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    return {
        name: path.read_bytes()
        for name, path in files
        if is_part_of_tree(name) and not path.name.startswith(".git")
    }


def parse(text: str) -> tuple[list[Entry], list[Problem]]:
    """The entries of a series file, and the lines that are none.

    >>> entries, problems = parse("a/b.patch  # >=0.5.6,<0.5.10\\n")
    >>> entries[0].name, entries[0].text, problems
    ('a/b.patch', '>=0.5.6,<0.5.10', [])
    """
    entries: list[Entry] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), 1):
        if "\r" not in line and (not line.strip() or line.startswith("#")):
            continue
        entry = _entry(number, line)
        if isinstance(entry, Problem):
            problems.append(entry)
        elif entry.name in (earlier.name for earlier in entries):
            what = f"{entry.name} is listed twice"
            problems.append(Problem("duplicate", f"{FILE}:{number}", what))
        else:
            entries.append(entry)
    return entries, problems


def _entry(number: int, line: str) -> Entry | Problem:
    """The entry that a line lists, or the problem of the line."""
    where = f"{FILE}:{number}"
    name, _, guard = (part.strip() for part in line.partition(" #"))
    if "\r" in line:
        return Problem("crlf", where, "has a carriage return", "save it with LF line ends")
    if not PATCH_NAME.fullmatch(name):
        what = f"{name!r} is not like topic/verb-object.patch, below patches/"
        return Problem("bad-path", where, what)
    if not guard:
        step = "write the releases it is for: `PATH  # >=0.5.9,<0.5.10`"
        return Problem("empty-guard", where, f"{name} has no guard", step)
    if "===" in guard:
        what = f"{guard!r} compares text; a guard is a range"
        return Problem("bad-guard", where, what, "write == for one release")
    try:
        return Entry(name, SpecifierSet(guard), guard, number)
    except InvalidSpecifier:
        return Problem("bad-guard", where, f"{guard!r} is no PEP 440 specifier")


def overlapping(queue: Queue, version: Version) -> list[Problem]:
    """The patches of which several variants are for a release."""
    bases = Counter(entry.base for entry in queue.entries if entry.is_for(version))
    what, step = f"several variants are for {version}", "give them disjoint guards"
    twice = [base for base, count in bases.items() if count > 1]
    return [Problem("overlapping-variants", f"{FILE}: {base}", what, step) for base in twice]


def lint(root: Path, queue: Queue) -> list[Problem]:
    """Problems of the queue as a whole: of variants, names, tests and the overlay."""
    checks = (_variants(queue), _names(root, queue), _overlay(root, queue))
    return [problem for problems in checks for problem in problems]


def _variants(queue: Queue) -> Iterator[Problem]:
    for entry in queue.entries:
        if entry.name not in queue.patches:
            continue
        where, variant_of = (
            f"patches/{entry.name}",
            queue.patches[entry.name].header.get("Variant-Of"),
        )
        if variant_of != (entry.base if entry.base != entry.name else ""):
            what = f"its file name says {entry.base}, its Variant-Of {variant_of or 'nothing'}"
            step = "a variant is called STEM@VERSION.patch and says `Variant-Of: STEM.patch`"
            yield Problem("bad-variant", where, what, step)
        elif variant_of and variant_of not in queue.patches:
            what = f"there is no readable patches/{variant_of} whose header it could share"
            yield Problem("bad-variant", where, what)


def _names(root: Path, queue: Queue) -> Iterator[Problem]:
    """What headers name, and is not there. A queue that a wheel brings has no tests."""
    has_tests, listed = (root / "tests").is_dir(), {entry.base for entry in queue.entries}
    for name, patch in sorted(queue.patches.items()):
        where = f"patches/{name}"
        for test in patch.header.tests:
            if has_tests and not (root / test).is_file():
                yield Problem("missing-test", where, f"its Test {test} is not there")
        for need in patch.header.needs:
            if need not in listed:
                what = f"names {need.removesuffix('.patch')}, which series does not list"
                yield Problem("unknown-patch", where, what)
        for named in patch.header.overlay:
            if not any(is_named(named, path) for path in queue.overlay):
                what = f"names overlay/{named}, which is not there"
                yield Problem("missing-overlay", where, what)


def _overlay(root: Path, queue: Queue) -> Iterator[Problem]:
    unnamed = "no patch's lines import it, nor a file that one imports, and no Overlay names it"
    for path in queue.unnamed_overlay():
        yield Problem("unnamed-overlay", f"overlay/{path}", unnamed)
    for file in sorted((root / "overlay").rglob("*")):
        if file.is_symlink():
            where = file.relative_to(root).as_posix()
            yield Problem("symlink", where, "an overlay file is a plain file")
    for path, content in queue.overlay.items():
        where = f"overlay/{path}"
        if path == PROVENANCE:
            what = "is written by the tool itself, for each tree"
            yield Problem("reserved-name", where, what, "choose another name")
        if not path.startswith(SGLANG):
            yield Problem("bad-path", where, f"lies outside {SGLANG}")
        if re.search(r'[\s"\\\x00-\x1f]', path):
            what = "has white space, a quote, a backslash or a control character"
            yield Problem("bad-path", where, f"{what}, which no patch can name")
        yield from _overlay_text(where, content)


def _overlay_text(where: str, content: bytes) -> Iterator[Problem]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        yield Problem("not-utf-8", where, "is not UTF-8 text")
        return
    if "\r" in text:
        yield Problem("crlf", where, "has carriage returns", "save it with LF line ends")
    elif not text.endswith("\n"):
        what = "is empty, or its last line has no line end"
        yield Problem("overlay-form", where, what, "give it at least a docstring")


def as_patch(files: Mapping[str, bytes]) -> bytes:
    """New files as one patch in quilt's own form. Lint sees to it that every file can be in one."""
    parts = []
    for path, content in sorted(files.items()):
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
        size = f"1,{len(lines)}" if len(lines) > 1 else "1"
        parts.append(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +{size} @@\n")
        parts += [f"+{line}\n" for line in lines]
    return "".join(parts).encode()


def is_named(name: str, path: str) -> bool:
    """Whether a name in a header means the overlay file: itself, or a folder that holds it."""
    return path == name or (name.endswith("/") and path.startswith(name))


def closure(named: Iterable[str], overlay: Mapping[str, bytes]) -> frozenset[str]:
    """The overlay files `named`, those that they import, and the packages of all these."""
    reached: set[str] = set()
    waiting = set(named) & overlay.keys()
    while waiting:
        reached |= waiting
        folders = {
            f"{folder}/__init__.py" for path in waiting for folder in PurePosixPath(path).parents
        }
        imported = folders.union(*(imports_of(path, overlay[path]) for path in waiting))
        waiting = (imported & overlay.keys()) - reached
    return frozenset(reached)


@functools.cache  # every selection of patches asks for the same files
def imports_of(path: str, content: bytes) -> frozenset[str]:
    """The files that the module `path` may import, as paths in the tree, if they are there."""
    return frozenset(file for _, file in imports_by_line(path, content))


def imports_by_line(path: str, content: bytes) -> Iterator[tuple[int, str]]:
    """(line, file) of each import in the module `path`, as `imports_of` has the files."""
    text = content.decode("utf-8", "replace") if path.endswith(".py") else ""
    package = path.removeprefix(PREFIX).split("/")[:-1]
    for match in IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield from ((line, file) for file in _imported(match, package))


def imported(patch: Patch) -> frozenset[str]:
    """The same of a patch's added lines: absolute imports alone."""
    hunks = (hunk.lines for file in patch.files for hunk in file.hunks)
    added = ("".join(line[1:] for line in lines if line[0] == "+") for lines in hunks)
    return frozenset().union(*map(_absolute_imports, added))


@functools.cache
def _absolute_imports(text: str) -> frozenset[str]:
    matches = (match for match in IMPORT.finditer(text) if not match[1])
    return frozenset(file for match in matches for file in _imported(match, []))


def _imported(match: re.Match[str], package: list[str]) -> Iterator[str]:
    """The files that one import may mean. package: the folders of the module that has it."""
    dots, module, parenthesised, listed, plain = match.groups()
    if plain is not None:
        for name in re.findall(r"(?:^|,)\s*([\w.]+)", plain):
            yield from _files(name.split("."), [])
        return
    above = package[: len(package) + 1 - len(dots)] if dots else []
    yield from _files([*above, *module.split(".")], re.findall(r"\w+", parenthesised or listed))


def _files(module: list[str], names: Collection[str]) -> set[str]:
    """Where a module, and those of `names` that are modules in it, would lie."""
    stem = PREFIX + "/".join(filter(None, module))
    return {
        f"{path}{end}"
        for path in (stem, *(f"{stem}/{name}" for name in names))
        for end in (".py", "/__init__.py")
    }
