"""Rules about the queue as a whole that need no upstream tree; those of one patch's form are in
patchfile.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..outcome import Problem
from .series import FILE, PROVENANCE, Queue, is_named, overlapping

QUOTED = re.compile(r'"([^"/\s]+/[^"\s]+)\.patch"')
NAMING = {  # files that name patches, and how
    "docs/patches.md": re.compile(r"(?m)^\| `([^`/\s]+/[^`\s]+)` \|"),
    "evidence/matrix.toml": QUOTED,
}


def lint(root: Path, queue: Queue) -> list[Problem]:
    """Problems of the series' guards, the variants, the overlay and the tests."""
    both = "{} ({}) and {} ({}) are both for {}".format
    return [
        *(
            Problem(
                "overlapping-variants", f"{FILE}:{b.line}", both(a.name, a.text, b.name, b.text, v)
            )
            for a, b, v in overlapping(queue.entries)
        ),
        *_variants(queue),
        *_overlay(root, queue),
        *_tests(root, queue),
    ]


def _variants(queue: Queue) -> list[Problem]:
    problems = []
    for entry in queue.entries:
        patch = queue.patches.get(entry.name)
        if patch is None:
            continue
        variant_of = patch.header.get("Variant-Of")
        if (entry.base != entry.name) != patch.header.is_variant or (
            variant_of and variant_of != entry.base
        ):
            what = f"its file name says {entry.base}, its Variant-Of {variant_of or 'nothing'}"
            step = "a variant is called STEM@VERSION.patch and says `Variant-Of: STEM.patch`"
            problems.append(Problem("bad-variant", f"patches/{entry.name}", what, step))
        elif variant_of and variant_of not in queue.patches:
            what = f"there is no readable patches/{variant_of} whose header it could share"
            problems.append(Problem("bad-variant", f"patches/{entry.name}", what))
    return problems


def _overlay(root: Path, queue: Queue) -> list[Problem]:
    unnamed = "no patch's lines import it, nor a file that one imports, and no Overlay names it"
    problems = [
        Problem("unnamed-overlay", f"overlay/{path}", unnamed) for path in queue.unnamed_overlay()
    ]
    for file in sorted((root / "overlay").rglob("*")):
        if file.is_symlink():
            where = file.relative_to(root).as_posix()
            problems.append(Problem("symlink", where, "an overlay file is a plain file"))
    for path, content in queue.overlay.items():
        problems += _overlay_name(path)
        problems += _overlay_text(f"overlay/{path}", content)
    for name, patch in sorted(queue.patches.items()):
        for named in patch.header.overlay:
            if not any(is_named(named, path) for path in queue.overlay):
                what = f"names overlay/{named}, which is not there"
                problems.append(Problem("missing-overlay", f"patches/{name}", what))
    return problems


def _overlay_name(path: str) -> Iterator[Problem]:
    where = f"overlay/{path}"
    if path == PROVENANCE:
        what = "is written by the tool itself, for each tree"
        yield Problem("reserved-name", where, what, "choose another name")
    if not path.startswith(("python/sglang/", "test/")):
        yield Problem("bad-path", where, "lies outside python/sglang/ and test/")
    if re.search(r'[\s"\\\x00-\x1f]', path):
        what = "has white space, a quote, a backslash or a control character"
        yield Problem("bad-path", where, f"{what}, which no patch can name")


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


def _tests(root: Path, queue: Queue) -> list[Problem]:
    """A queue that a wheel brings has no tests."""
    if not (root / "tests").is_dir():
        return []
    return [
        Problem("missing-test", f"patches/{name}", f"its Test {test} is not there")
        for name, patch in sorted(queue.patches.items())
        for test in patch.header.tests
        if not (root / test).is_file()
    ]


def unlisted_names(root: Path, queue: Queue) -> Iterator[Problem]:
    """Patches that series does not list, and that a file still names, as after a rename."""
    known = {
        name.removesuffix(".patch") for entry in queue.entries for name in (entry.name, entry.base)
    }

    def unknown(where: str, name: str) -> Problem:
        step = f"`git grep {name}` finds what else names it"
        return Problem("unknown-patch", where, f"names {name}, which series does not list", step)

    needs = {(patch.name, need) for patch in queue.patches.values() for need in patch.header.needs}
    for patch, need in sorted(needs):
        if (name := need.removesuffix(".patch")) not in known:
            yield unknown(f"patches/{patch}", name)
    for file, pattern in NAMING.items():
        content = (root / file).read_text("utf-8") if (root / file).is_file() else ""
        for match in pattern.finditer(content):
            if match[1] not in known:
                line = content.count("\n", 0, match.start()) + 1
                yield unknown(f"{file}:{line}", match[1])
