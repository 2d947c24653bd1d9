#!/usr/bin/env python3
"""List the functions that neighbouring releases have unlike, where hybrids and sparse attention
run.

What upstream repairs in a release is still wrong on the pins before it. A person reads the list of
a new release, with `--diff` where a name is not enough, and writes each fault and what was decided
into upstream/later-fixes.toml; `--write` makes docs/later-fixes.md of that file. A function is
compared by its syntax tree, without docstrings, comments and layout, and by its file's name and its
own: one that moved with its file counts as the same.

    .nox/tools/bin/python scripts/compare_releases.py v0.5.22 v0.5.23 --names
    .nox/tools/bin/python scripts/compare_releases.py --write

Without releases and without --write: the counts of each pair of neighbouring pins.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parent))

import tomlkit

from patchqueue.upstream import pins, source

ROOT = Path(__file__).resolve().parents[1]
DECISIONS, PAGE = "upstream/later-fixes.toml", "docs/later-fixes.md"
# by key of a fault in DECISIONS: the section's title, and the columns behind the releases
SECTIONS = {
    "patch": ("Repaired", ("patch", "fails without it")),
    "refused": ("Refused at start, with a message", ("patch", "fails without it")),
    "instead": ("Not repaired", ("workaround",)),
}
# of a pair in DECISIONS; all other faults are documented
COUNTS = ("read", "faults", "repaired", "refused")
# what hybrids and sparse attention run through, below python/sglang/; files and whole folders
AREAS = {
    "models": r"srt/models/(nemotron_h|qwen3_next|qwen3_5|falcon_h1|kimi_linear|granitemoehybrid"
    r"|lfm2|jet_nemotron|bailing_moe_linear|deepseek_v2|deepseek_common/|deepseek_nextn|glm4_moe"
    r"|glm5)",
    "linear": r"srt/layers/(attention/(linear/|fla/|hybrid_linear)|radix_linear)"
    r"|kernels/ops/attention/(fla|linear)/",
    "mamba": r"(srt/layers|kernels/ops).*/mamba/",
    "nsa, dsa": r"srt/layers/attention/(nsa|dsa)|kernels/ops/attention/dsa",
    "pools": r"srt/mem_cache/(memory_pool|allocator|index_key|mamba_pool|common)",
    "radix": r"srt/mem_cache/(.*mamba.*|unified_.*|hybrid_cache/.*)\.py",
    "scheduler": r"srt/managers/(scheduler|schedule_batch|schedule_policy|scheduler_.*)",
    "graphs": r"srt/model_executor/|srt/batch_overlap/",
    "drafts": r"srt/speculative/",
    "weights": r"srt/model_loader/|srt/layers/(linear|parameter)\.py",
    "saver": r"srt/.*memory_saver",
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="*", help="an older and a newer pin")
    parser.add_argument("--names", action="store_true", help="name the functions")
    parser.add_argument("--diff", metavar="REGEX", help="show how those of this name changed")
    parser.add_argument("--write", action="store_true", help=f"make {PAGE}")
    options = parser.parse_args(words)
    if options.write:
        (ROOT / PAGE).write_text(page(ROOT))
        return 0
    pinned = pins.load(ROOT)
    chosen = [pinned.find(name) for name in options.releases] or list(pinned.all)
    for older, newer in pairwise(chosen):
        before, after = (functions_of(source.fetch(pin, None)) for pin in (older, newer))
        names = sorted(name for name in before if name in after and before[name] != after[name])
        gone, added = len(before.keys() - after.keys()), len(after.keys() - before.keys())
        print(f"{older.version} -> {newer.version}: {len(names)} changed, {gone} gone, {added} new")
        print("  " + ", ".join(f"{area} {count}" for area, count in by_area(names).items()))
        for name in names:
            if options.names:
                print(f"  {name}")
            if options.diff and re.search(options.diff, name):
                print(
                    "\n".join(difflib.unified_diff(*(m[name].split("\n") for m in (before, after))))
                )
    return 0


def page(root: Path) -> str:
    """The page that says what was decided, in Markdown, of DECISIONS below `root`."""
    decisions = tomlkit.parse((root / DECISIONS).read_text()).unwrap()
    faults, pairs = decisions["fault"], decisions["pair"]
    sections = []
    for key, (title, columns) in SECTIONS.items():
        chosen = [fault for fault in faults if key in fault]
        rows = [(one["what"], one["releases"], one[key], seen(root, one)) for one in chosen]
        head = ("fault", "releases", *columns)
        sections.append(f"## {title}\n\n" + table(head, [row[: len(head)] for row in rows]))
    total = {count: sum(pair.get(count, 0) for pair in pairs) for count in COUNTS}
    documented = total["faults"] - total["repaired"] - total["refused"]
    method = decisions["method"].strip().format(**total, documented=documented)
    return "\n".join([decisions["intro"].strip() + "\n", *sections, method + "\n"])


def seen(root: Path, fault: Mapping[str, str]) -> str:
    """The test that fails on a release without the fault's patch, and that release; "-" where none
    was seen to. Raises ValueError where there is no such test."""
    if "seen" not in fault:
        return "-"
    release, file, test = re.split(" |::", fault["seen"])
    if f"\ndef {test}(" not in (root / "tests/revision" / file).read_text():
        raise ValueError(f"{DECISIONS}: tests/revision/{file} has no test {test}")
    return f"`{test}`, {release}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    title, *lines = (f"| {' | '.join(map(str, line))} |\n" for line in (head, *rows))
    return "".join([title, "|" + "---|" * len(head) + "\n", *lines])


def by_area(names: Sequence[str]) -> dict[str, int]:
    """How many of the functions each area has."""
    return {area: sum(name.startswith(f"{area}: ") for name in names) for area in AREAS}


def functions_of(release: source.Source) -> dict[str, str]:
    """The code of each function in AREAS by "area: file: name", as ast.unparse writes it."""
    codes: dict[str, str] = {}
    for path in release.listing():
        area = area_of(path.removeprefix("python/sglang/"))
        if area and path.endswith(".py"):
            tree = ast.parse((release.read(path) or b"").decode())
            file = PurePosixPath(path)
            name = f"{file.parent.name}/{file.name}" if file.name == "__init__.py" else file.name
            codes |= {f"{area}: {name}: {key}": code for key, code in functions_in(tree)}
    return codes


def area_of(path: str) -> str | None:
    """The first area whose pattern matches `path`, a path below python/sglang/."""
    return next((area for area, pattern in AREAS.items() if re.match(pattern, path)), None)


def functions_in(tree: ast.AST, above: str = "") -> Iterator[tuple[str, str]]:
    """Each function with its code; those inside of a function are part of it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield above + node.name, ast.unparse(without_docstrings(node))
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{above}{node.name}.")
        else:
            yield from functions_in(node, above)


def without_docstrings(function: ast.AST) -> ast.AST:
    """The same function; docstrings are cut off it in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return function


if __name__ == "__main__":
    sys.exit(main())
