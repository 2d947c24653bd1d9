"""budgets.toml: no part of the project has more than its budget."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import tomlkit
from fakes import ROOT
from test_help import parsers

BUDGETS = "budgets.toml"
MEASURES: dict[str, tuple[str, Callable[[bytes], int]]] = {  # by table: a suffix, and one file's
    "lines": (".py", lambda content: len(content.splitlines())),
    "words": (".md", lambda content: len(content.decode().split())),
    "bytes": ("", len),
}


def git(root: Path, *words: str) -> bytes:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout


def sizes(root: Path, table: str, part: str) -> dict[str, int]:
    """The files of a part that git has or would add: name -> size in the table's unit."""
    suffix, measure = MEASURES[table]
    names = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", part)
    chosen = [
        name
        for name in names.decode().splitlines()
        if name.endswith(suffix) and (root / name).is_file()
    ]
    return {name: measure((root / name).read_bytes()) for name in chosen}


def counts(root: Path) -> dict[str, int]:
    names = [str(path) for path in (root / "patches").rglob("*.patch")]
    return {
        "stems": len({name.removesuffix(".patch").partition("@")[0] for name in names}),
        "patches": len(names),
        "commands": len(parsers()),
        "rows": len((root / "evidence/results.jsonl").read_bytes().splitlines()),
    }


def exceeded(root: Path) -> Iterator[str]:
    """A message for each budget that is exceeded."""
    step = f"next: delete as much, or raise {BUDGETS} in a commit of its own that says why"
    budgets = tomlkit.parse((root / BUDGETS).read_text(encoding="utf-8")).unwrap()
    for name, most in budgets.pop("counts", {}).items():
        if (have := counts(root)[name]) > most:
            yield f"{have:,} {name}, {most:,} budgeted; {step}"
    for table, parts in budgets.items():
        for part, most in parts.items():
            if (have := sum(sizes(root, table, part).values())) > most:
                yield f"{part}: {have:,} {table}, {most:,} budgeted; {step}"


def test_no_budget_is_exceeded():
    messages = [*exceeded(ROOT)]
    assert not messages, "\n".join(messages)


def test_a_budget_covers_something():
    """A folder that was renamed has no files, and would never exceed its budget."""
    budgets = tomlkit.parse((ROOT / BUDGETS).read_text(encoding="utf-8")).unwrap()
    known = counts(ROOT)
    assert budgets.pop("counts").keys() == known.keys() and all(known.values())
    assert all(sizes(ROOT, table, part) for table, parts in budgets.items() for part in parts)


def test_a_budget_that_is_exceeded_is_named(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/one.py").write_text("1\n2\n")
    (tmp_path / "page.md").write_text("Three short words.\n")
    (tmp_path / BUDGETS).write_text('[lines]\n"code" = 1\n\n[words]\n"page.md" = 3\n')
    git(tmp_path, "init", "-q")
    (message,) = exceeded(tmp_path)
    assert message.startswith("code: 2 lines, 1 budgeted; next: ")
