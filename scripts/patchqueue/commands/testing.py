"""The command `test`: the tests of the tool and of releases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from rich.text import Text

from ..environments import testing
from ..outcome import Refused, to_type
from ..upstream import pins as pinning
from ..upstream.pins import Pin, Pins
from . import terminal
from .terminal import OUT, Command, chosen_releases, flag, option
from .trees import show_check


def _test(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    is_tool_tested, chosen = _chosen(options, pins)
    if without := [pin for pin in chosen if not testing.has_environment(options.root, pin)]:
        what = f"no lock in upstream/locks/ is of {' '.join(pin.tag for pin in without)}"
        step = f"{to_type('pin', without[0].tag, '--lock')} makes one"
        raise Refused.of("no-environment", without[0].tag, what, step)
    names = [*(["the tool"] if is_tool_tested else []), *(pin.tag for pin in chosen)]
    OUT.print(f"to be tested: {', '.join(names)}")
    if is_tool_tested and not show_check(options.root, pins.all):
        return 1
    with ThreadPoolExecutor(1) as meanwhile:
        preparing = [meanwhile.submit(testing.prepare, options.root, pin) for pin in chosen]
        if is_tool_tested:
            _begin("the tool")
            if testing.test_tool(options.root, _selecting(options)):
                meanwhile.shutdown(cancel_futures=True)
                return 1
        prepared = [release.result() for release in preparing]
    codes = _test_releases(options, prepared)
    for each, code in zip(prepared, codes):
        failed = Text(f"failed (pytest exit code {code})", "red")
        edits = "(the tree has edits of yours)" if each.as_it_stands else ""
        OUT.print(f"{each.pin.tag}:", failed if code else Text("passed", "green"), edits)
    return 1 if any(codes) else 0


def _chosen(options: argparse.Namespace, pins: Pins) -> tuple[bool, list[Pin]]:
    """Whether the tool is tested, and which releases are. Raises Refused where --all and a release
    are named."""
    if options.all and options.releases:
        step = f"name {options.releases[0]} alone, or --all alone"
        what = f"means every release, {options.releases[0]} means one"
        raise Refused.of("bad-words", "--all", what, step)
    if options.tool and not (options.releases or options.all):
        return True, []
    narrowed = options.releases or options.all or options.expression
    default = pins.all if options.all else pins.tested or [pins.default]
    return options.tool or not narrowed, chosen_releases(options, pins, default)


def _selecting(options: argparse.Namespace) -> list[str]:
    return ["-k", options.expression] if options.expression else []


def _test_releases(options: argparse.Namespace, prepared: Sequence[testing.Prepared]) -> list[int]:
    """Test releases in parallel; pytest's exit codes. The output of the first is printed as it is
    written, that of the others when those before them have ended."""
    words = _selecting(options)
    words += ["--color=yes"] if OUT.is_terminal and not OUT.no_color else []
    processors, codes = os.cpu_count() or 1, []
    # a second process for one release imports torch and sglang once more
    parallel = min(len(prepared), processors, testing.WORKERS) or 1
    workers = 1 if options.expression else min(processors // parallel, testing.WORKERS)
    with ThreadPoolExecutor(parallel) as pool:
        runs: list[Future[tuple[int, str]]] = []
        for each in prepared:
            if is_first := not runs:
                _begin(each.pin.tag)
            test = partial(testing.test_release, options.root, each, words, workers, is_first)
            runs.append(pool.submit(test))
        for each, run in zip(prepared, runs):
            code, output = run.result()
            if run is not runs[0]:
                _begin(each.pin.tag)
            OUT.file.write(output)
            codes.append(code)
    return codes


def _begin(title: str) -> None:
    OUT.rule(title, align="left", style="dim")
    OUT.file.flush()  # pytest writes next


COMMANDS = (
    Command(
        "test",
        _test,
        "apply, build the release's environment, run tests/revision in it",
        "v0.5.9 -k scan",
        (
            terminal.releases("the tool, and the releases that upstream/pins.toml calls tested"),
            flag("--all", "every pinned release"),
            option("-k TEXT", "only the tests that pytest's -k selects", dest="expression"),
            flag(
                "--tool",
                "test the tool itself: check, and tests/queue; without a release nothing else",
            ),
        ),
    ),
)
