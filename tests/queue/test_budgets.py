"""budgets.toml: no part of the project has more than its budget."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomlkit
from test_help import parsers

ROOT = Path(__file__).resolve().parents[2]
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


def grown(root: Path, table: str, now: dict[str, int]) -> str:
    """The three files that grew most since the commit that set the budgets. In a shallow clone,
    whose only commit that is, the largest three."""
    since = git(root, "log", "-1", "--format=%H", "--", BUDGETS).decode().strip() or "HEAD"
    known = git(root, "ls-tree", "-r", "--name-only", since).decode().splitlines()
    old = {name: git(root, "show", f"{since}:{name}") for name in now.keys() & {*known}}
    more = {name: now[name] - MEASURES[table][1](old.get(name, b"")) for name in now}
    shown = {name: by for name, by in more.items() if by > 0} or now
    most = sorted(shown, key=shown.__getitem__, reverse=True)[:3]
    return ", ".join(f"{name} ({shown[name]:+,})" for name in most)


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
            files = sizes(root, table, part)
            if (have := sum(files.values())) > most:
                where = grown(root, table, files)
                yield f"{part}: {have:,} {table}, {most:,} budgeted; grown: {where}; {step}"


def test_no_budget_is_exceeded():
    messages = [*exceeded(ROOT)]
    assert not messages, "\n".join(messages)


def test_a_budget_covers_something():
    """A folder that was renamed has no files, and would never exceed its budget."""
    budgets = tomlkit.parse((ROOT / BUDGETS).read_text(encoding="utf-8")).unwrap()
    known = counts(ROOT)
    assert budgets.pop("counts").keys() == known.keys() and all(known.values())
    assert all(sizes(ROOT, table, part) for table, parts in budgets.items() for part in parts)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with a budget of three lines and three words, both used up."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/one.py").write_text("1\n2\n")
    (tmp_path / "code/two.py").write_text("3\n")
    (tmp_path / "page.md").write_text("Three short words.\n")
    (tmp_path / BUDGETS).write_text('[lines]\n"code" = 3\n\n[words]\n"page.md" = 3\n')
    author = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, *author, "commit", "-qm", "Set the budgets")
    return tmp_path


def test_a_message_names_the_files_that_grew_and_the_next_step(small):
    assert [*exceeded(small)] == []
    (small / "code/two.py").write_text("3\n4\n")
    (small / "code/three.py").write_text("5\n6\n7\n")
    (small / "page.md").write_text("Four quite short words.\n")
    step = "next: delete as much, or raise budgets.toml in a commit of its own that says why"
    assert [*exceeded(small)] == [
        f"code: 7 lines, 3 budgeted; grown: code/three.py (+3), code/two.py (+1); {step}",
        f"page.md: 4 words, 3 budgeted; grown: page.md (+1); {step}",
    ]


def test_a_budget_set_too_low_names_the_largest_files(small):
    (small / BUDGETS).write_text('[lines]\n"code" = 2\n')
    (message,) = exceeded(small)
    assert "3 lines, 2 budgeted; grown: code/one.py (+2), code/two.py (+1);" in message
