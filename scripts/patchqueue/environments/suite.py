"""Upstream's unit tests for CPUs: found in a checkout of sglang, which is compared with the
release.

Upstream marks a test file with a call at its top level, `register_cpu_ci(est_time=…, suite=…)`,
which its test/run_suite.py reads without importing the file (python/sglang/test/ci/ci_register.py,
0.5.6 and later). `disabled="reason"` keeps the file from every run. The folder of unit tests,
test/registered/unit/, was described in March 2026 (sglang#20626), after 0.5.9. Many of its files
had the mark of a GPU alone, although they need none (sglang#24569, sglang#33654). Before it unit
tests lay beside tests of servers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files.tree import differing, list_folder, python_part
from ..hint import some
from ..outcome import Outcome, Refused
from ..upstream.pins import Pin

FOLDERS = ("test/registered", "test/srt")  # test/manual holds what upstream runs nowhere
UNIT = "test/registered/unit"
MARK, OTHER_MARK = "register_cpu_ci", re.compile(r"register_(?!cpu_)\w+_ci")
NO_TESTS = ("conftest.py", "__init__.py")
# what starts a server, an engine or a model's runner: names of sglang's own helpers for tests
SERVERS = re.compile(
    r"\bpopen_launch|\blaunch_server\b|\bEngine\(|ServerBase\b|\b(?:SRT|HF)Runner\b"
    r"|Mixin\b.*CustomTestCase|\bbench_one_batch\b|\brun_(?:bench_serving|eval)\b"
)


@dataclass(frozen=True)
class Suite:
    """chosen: files of tests, as paths below the checkout, sorted; left_out: the others that were
    looked at, each with why."""

    chosen: tuple[str, ...]
    left_out: Mapping[str, str]


def find(checkout: Path) -> Suite:
    """The tests that may need no GPU: files with upstream's mark for CPUs, and other unit tests.

    Those are the files of test/registered/unit/, and in a checkout of before it all files, as far
    as they start no server. What such a file needs shows when it runs. Raises Refused where there
    is none.
    """
    units = f"{UNIT}/" if (checkout / UNIT).is_dir() else ""
    chosen, left_out = [], {}
    for path in _files(checkout):
        name = path.relative_to(checkout).as_posix()
        why = _left_out(path.read_text("utf-8", "replace"), name.startswith(units))
        if why:
            left_out[name] = why
        else:
            chosen.append(name)
    if not chosen:
        what = f"holds no unit tests for CPUs in {' or '.join(FOLDERS)}"
        step = "name a whole checkout of sgl-project/sglang at the release's tag"
        raise Refused.of("no-tests", str(checkout), what, step)
    return Suite(tuple(chosen), left_out)


def _files(checkout: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*.py")):
            if path.name not in NO_TESTS and path.is_file():
                yield path


def _left_out(text: str, is_unit: bool) -> str:
    """Why a file is not run; "" where it is.

    One that Python cannot parse, and that has the mark, is run: the error is its result.
    """
    try:
        marks = list(_marks(ast.parse(text)))
    except (SyntaxError, ValueError):
        return "" if MARK in text else "Python cannot parse it"
    cpu = next((mark for mark in marks if mark.name == MARK), None)
    if cpu:
        return f"disabled by upstream: {cpu.disabled}" if cpu.disabled else ""
    if not is_unit:
        return "is no unit test, and upstream does not mark it for CPUs"
    if disabled := next((mark.disabled for mark in marks if mark.disabled), ""):
        return f"disabled by upstream: {disabled}"
    if SERVERS.search(text):
        return "starts a server or loads a model"
    return "" if re.search(r"(?m)^\s*(?:async )?def test_", text) else "holds no test"


@dataclass(frozen=True)
class _Mark:
    name: str
    disabled: str


def _marks(tree: ast.Module) -> Iterator[_Mark]:
    """Upstream's marks in a file: calls at its top level."""
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id == MARK or OTHER_MARK.fullmatch(call.func.id):
            words = {word.arg: word.value for word in call.keywords}
            disabled = words.get("disabled") or (call.args[3] if len(call.args) > 3 else None)
            value = disabled.value if isinstance(disabled, ast.Constant) else None
            yield _Mark(call.func.id, str(value or ""))


def refuse_no_checkout(checkout: Path, pin: Pin) -> None:
    """Raise Refused unless `checkout` is a folder that has sglang."""
    make = f"`git clone --branch {pin.tag} --depth 1 https://github.com/sgl-project/sglang`"
    if not checkout.is_dir():
        raise Refused.of("no-checkout", str(checkout), "is no folder", f"{make} makes one")
    if not (checkout / "python/sglang").is_dir():
        what = "is no checkout of sglang: it has no python/sglang"
        raise Refused.of("no-checkout", str(checkout), what, f"{make} makes one")


def refuse_other_release(checkout: Path, pin: Pin, pristine: Mapping[str, str]) -> None:
    """Raise Refused unless `checkout` holds the Python files of the pinned release, by their hash.

    pristine: the release's listing (see files/tree.py). Its tests would be those of another tree.
    """
    changed = differing(python_part(list_folder(checkout)), python_part(pristine))
    if changed:
        what = f"is not {pin.tag}: {len(changed)} of its files differ, as {some(changed)}"
        step = f"check out the tag {pin.tag} there, without edits"
        raise Refused.of(str(Outcome.TREE_MISMATCH), str(checkout), what, step)
