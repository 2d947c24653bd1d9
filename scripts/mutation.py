#!/usr/bin/env python3
"""Mutate the checks that the queue's safety rests on, and see which mutants the tests kill.

cosmic-ray makes the mutants: another comparison, no `not`, `and` for `or`, another number, a loop
that does not run. A sample of them is tried, each in a copy of the repository, and the module's own
tests are asked. Exit code 0: at least --least percent of them were killed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parents[1]
TOOL = "scripts/patchqueue"
CHECKS = {  # a module, and the tests that speak of it
    f"{TOOL}/laying/replay.py": ["test_replay.py"],
    f"{TOOL}/queue/guards.py": ["test_guards.py"],
    f"{TOOL}/install/journal.py": ["test_install.py"],
    f"{TOOL}/upstream/source.py": ["test_source.py"],
    f"{TOOL}/queue/lint.py": ["test_lint.py"],
}
# Annotations are not evaluated: `int | None` is no operation that a test could see.
NO_OPERATION = "ReplaceBinaryOperator_BitOr"
TIMEOUT_S = 120


@dataclass(frozen=True)
class Tried:
    """One mutant. diff: the change, as text."""

    module: str
    killed: bool
    diff: str


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy(Path(folder) / str(number)) for number in range(options.workers)]
        _begin(copies[0])
        if not _pass(options.module):
            print("the tests fail without any mutant", file=sys.stderr)
            return 2
        found = [*_try(copies, _sample(options))]
        os.chdir(ROOT)
    return _report(found, options.least)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("module", nargs="*", default=[*CHECKS], help=f"default: {' '.join(CHECKS)}")
    add("--each", type=int, default=40, help="mutants of each module at most (default 40)")
    add("--seed", type=int, default=0, help="another sample (default 0)")
    add("--least", type=float, default=95, help="percent that must be killed (default 95)")
    add("--workers", type=int, default=os.cpu_count() or 1, help="mutants at once")
    options = parser.parse_args(words)
    if unknown := set(options.module) - set(CHECKS):
        parser.error(f"no check is known here: {', '.join(sorted(unknown))}")
    return options


def _copy(folder: Path) -> Path:
    """What git knows of the working tree, in a folder of its own."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target)
    return folder


def _command(module: str) -> str:
    tests = [f"tests/queue/{name}" for name in CHECKS[module]]
    return shlex.join(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    )


def _begin(copy: Path) -> None:
    """Work in a copy. A mutant may have its module's size and second, so that byte code of the one
    would do for the other: none is written."""
    os.chdir(copy)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _pass(modules: Sequence[str]) -> bool:
    runs = (subprocess.run(shlex.split(_command(module)), check=False) for module in modules)
    return all(run.returncode == 0 for run in runs)


def _sample(options: argparse.Namespace) -> list[MutationSpec]:
    """Of each module so many, the same ones for one seed and one state of the module."""
    chosen: list[MutationSpec] = []
    for module in options.module:
        with use_db(":memory:", WorkDB.Mode.create) as work:
            init([Path(module)], work, {})
            known = [spec for item in work.work_items for spec in item.mutations]
        known = [spec for spec in known if NO_OPERATION not in spec.operator_name]
        known.sort(key=lambda spec: (spec.start_pos, spec.operator_name, spec.occurrence))
        source = random.Random(f"{options.seed} {module}")
        chosen += source.sample(known, min(options.each, len(known)))
    return chosen


def _try(copies: Sequence[Path], mutants: Sequence[MutationSpec]) -> Iterator[Tried]:
    """Every mutant once. A worker has a copy of its own: a mutant lies in it as a file."""
    free = multiprocessing.Manager().Queue()
    for copy in copies:
        free.put(copy)
    with ProcessPoolExecutor(len(copies), initializer=_take, initargs=(free,)) as pool:
        for tried in pool.map(_one, mutants):
            print("." if tried.killed else "S", end="", flush=True)
            yield tried
    print()


def _take(free: Queue[Path]) -> None:
    _begin(free.get())


def _one(mutant: MutationSpec) -> Tried:
    result = mutate_and_test([mutant], _command(str(mutant.module_path)), TIMEOUT_S)
    return Tried(str(mutant.module_path), result.is_killed, result.diff or "")


def _report(found: Sequence[Tried], least: float) -> int:
    for tried in found:
        if not tried.killed:
            print(f"\nsurvived:\n{tried.diff}")
    for module in dict.fromkeys(tried.module for tried in found):
        mine = [tried for tried in found if tried.module == module]
        print(f"{module:40} {sum(tried.killed for tried in mine):4} of {len(mine)} killed")
    share = 100 * sum(tried.killed for tried in found) / max(len(found), 1)
    print(f"{share:.1f} % of {len(found)} mutants were killed; {least:g} % are asked for")
    return 0 if share >= least else 1


if __name__ == "__main__":
    raise SystemExit(main())
