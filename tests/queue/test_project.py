"""The project itself: budgets, functions' lengths, the queue's texts, compare_releases.py."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import compare_releases
import pytest
import tomlkit
from fakes import ROOT, git
from test_cli import parsers

from patchqueue.applying.apply import load_queue
from patchqueue.queue.patchfile import FileDiff
from patchqueue.upstream import pins

BUDGETS = "budgets.toml"
MEASURES: dict[str, tuple[str, Callable[[bytes], int]]] = {  # by table: a suffix, and one file's
    "lines": (".py", lambda content: len(content.splitlines())),
    "words": (".md", lambda content: len(content.decode().split())),
    "bytes": ("", len),
}


def sizes(root: Path, table: str, part: str) -> dict[str, int]:
    """The files of a part that git has or would add: name -> size in the table's unit."""
    suffix, measure = MEASURES[table]
    names = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", part)
    files = [(name, root / name) for name in names.splitlines() if name.endswith(suffix)]
    return {name: measure(file.read_bytes()) for name, file in files if file.is_file()}


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


MOST = 40  # lines, at 100 columns


@pytest.mark.parametrize("package", ["scripts/patchqueue", "lab"])
def test_no_function_has_more_lines_than_a_screen(package):
    trees = {
        file.relative_to(ROOT): ast.parse(file.read_text(encoding="utf-8"))
        for file in (ROOT / package).rglob("*.py")
    }
    assert trees
    assert [
        f"{file}: {node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MOST
    ] == []


@pytest.mark.parametrize(
    ("kinds", "most"),
    # releases may have no line beside a change in common, or an order that is not theirs
    [(" +-", 0), ("+-", 7)],
    ids=["other line numbers", "other surroundings"],
)
def test_few_texts_of_a_patch_make_the_same_changes(kinds, most):
    def changes(file: FileDiff) -> tuple[str, tuple[str, ...]]:
        lines = (line for hunk in file.hunks for line in hunk.lines)
        return file.path, tuple(line for line in lines if line[0] in kinds)

    queue = load_queue(ROOT)
    items = queue.patches.items()
    texts = Counter((queue.base(name), tuple(map(changes, one.files))) for name, one in items)
    again = {text[0]: count for text, count in texts.items() if count > 1}
    assert sum(again.values()) - len(again) <= most, again


def test_a_patch_that_no_pull_request_can_carry_is_not_pending():
    """Pull requests are laid on the newest pin and later; what ended before can never be one."""
    queue, newest = load_queue(ROOT), pins.load(ROOT).all[-1]
    sent = {queue.base(patch.name) for patch in queue.select(newest.version)}
    status = {queue.base(name): queue.header(name).get("Upstream-Status") for name in queue.patches}
    assert "Pending" not in {said for name, said in status.items() if name not in sent}


BEFORE = '''
class Pool:
    def clear(self):
        """Empty all slots."""
        self.free = []

if True:
    def track(step): return step // 64
'''


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ('"""Empty all slots."""', "# another text", set()),
        ("return step // 64", "return (\n        step // 64)", set()),
        ("self.free = []", "self.free = [1]", {"Pool.clear"}),
        ("step // 64", "step // 128", {"track"}),
    ],
)
def test_a_function_has_changed_where_its_code_has(before, after, changed):
    old, new = (
        dict(compare_releases.functions_in(ast.parse(text)))
        for text in (BEFORE, BEFORE.replace(before, after))
    )
    assert old.keys() == new.keys() == {"Pool.clear", "track"}
    assert {name for name in old if old[name] != new[name]} == changed


def test_the_page_of_later_fixes_says_what_was_decided():
    assert (ROOT / compare_releases.PAGE).read_text() == compare_releases.page(ROOT)
