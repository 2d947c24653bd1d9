#!/usr/bin/env python3
"""Draw which packages of scripts/patchqueue and scripts/evidence import which, as a Mermaid flow
chart in CONTRIBUTING.md.

`--check` writes nothing: exit code 1 where the page has another drawing. An arrow that two others
replace is left out: what is drawn is the transitive reduction of the imports.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
TOOL, ABOVE = "patchqueue", "evidence"  # the one in its packages, the other as a whole
BEGIN, END = "<!-- imports -->", "<!-- /imports -->"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args(words).check
    before = PAGE.read_text()
    after = put(before, chart(reduced(imports())))
    if before == after:
        return 0
    if check:
        print("CONTRIBUTING.md draws other imports: run `scripts/nox imports`", file=sys.stderr)
        return 1
    PAGE.write_text(after)
    return 0


def imports() -> dict[str, set[str]]:
    """By package, those that its modules import. Modules beside the packages are left out."""
    graph = grimp.build_graph(TOOL, ABOVE)
    packages = sorted(child for child in graph.find_children(TOOL) if graph.find_children(child))
    packages.append(ABOVE)
    return {
        one.rpartition(".")[2]: {
            other.rpartition(".")[2]
            for other in packages
            if other != one
            and graph.direct_import_exists(importer=one, imported=other, as_packages=True)
        }
        for one in packages
    }


def reduced(known: dict[str, set[str]]) -> dict[str, set[str]]:
    """`known`, which has no circles, without what follows from the rest."""
    return {
        one: {
            other
            for other in found
            if not any(other in reach(known, third) for third in found - {other})
        }
        for one, found in known.items()
    }


def reach(known: dict[str, set[str]], one: str) -> set[str]:
    """All that `one` imports, on whatever way."""
    found = set(known[one])
    for other in known[one]:
        found |= reach(known, other)
    return found


def chart(known: dict[str, set[str]]) -> str:
    arrows = [f"    {one} --> {other}" for one in sorted(known) for other in sorted(known[one])]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def put(page: str, drawing: str) -> str:
    """The page with the drawing between its two marks. Raises ValueError without them."""
    made, count = re.subn(f"{BEGIN}.*?{END}", f"{BEGIN}\n{drawing}\n{END}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE.name} has no place for the drawing: {BEGIN} … {END}")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
