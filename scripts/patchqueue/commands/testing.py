"""The command that tests the tool and releases."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.text import Text

from ..environments.environment import SIZE
from ..environments.testing import (
    Result,
    build_environment,
    has_environment,
    is_built,
    matplotlib_folder,
    prepare,
    share,
    test_revision,
    test_tool,
)
from ..hint import to_type
from ..outcome import Problem, Refused
from ..upstream import pins as pinning
from ..upstream.pins import Pin, Pins
from . import checking, releases
from .releases import OUT, tell

TEST = "apply, build the release's environment, run tests/revision in it"
TOOL_MINUTES, RELEASE_MINUTES = 4, 1.5


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    tested = releases.command(
        commands,
        "test",
        _test,
        TEST,
        "the tool, and the releases that upstream/pins.toml calls tested",
        "--all --from",
        tool="test the tool itself: check, and tests/queue; without a release nothing else",
    )
    tested.add_argument("-k", dest="expression", help="only the tests that pytest's -k selects")
    text = "run nothing: say which releases would be tested"
    tested.add_argument("--plan", action="store_true", help=text)


def _test(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    narrowed = options.words or options.all or options.expression or options.origin
    tool = options.tool or not narrowed
    chosen = releases.chosen(
        options, pins, [] if options.tool and not narrowed else pins.tested or [pins.default]
    )
    without = [pin for pin in chosen if not has_environment(options.root, pin)]
    if without and not options.all:
        raise Refused(map(_no_lock, without))
    chosen = [pin for pin in chosen if pin not in without]
    _show_plan(options.root, tool, chosen)
    if options.plan:
        return 0
    if tool and (not _checked(options.root, pins) or _test_tool(options.root, chosen)):
        return 1
    results = _test_releases(options, chosen)
    for result in results:
        failed = f"failed (pytest exit code {result.exit_code})"
        verdict = Text("passed", "green") if result.passed else Text(failed, "red")
        edits = "(the tree has edits of yours)" if result.as_it_stands else ""
        OUT.print(f"{result.pin.tag}:", verdict, edits)
    for pin in without:
        OUT.print(f"{pin.tag}: not tested, it has no environment", style="yellow")
    return 0 if all(result.passed for result in results) else 1


def _no_lock(pin: Pin) -> Problem:
    step = f"{to_type('pin', pin.tag, '--lock')} makes one"
    return Problem("no-environment", pin.tag, "has no lock in upstream/locks/", step)


def _checked(root: Path, pins: Pins) -> bool:
    """Check the queue, and meanwhile install what the tests of plots need; whether all is well."""
    with ThreadPoolExecutor(1) as beside:
        beside.submit(matplotlib_folder, root)
        return checking.show(root, pins.all, None, pins, False)


def _test_tool(root: Path, chosen: Sequence[Pin]) -> int:
    """Test the tool, and meanwhile build the environments that are needed next."""
    _begin("the tool")
    with ThreadPoolExecutor(1) as beside:
        built = [beside.submit(build_environment, root, pin) for pin in chosen]
        if code := test_tool(root):
            beside.shutdown(cancel_futures=True)
            return code
        for one in built:
            one.result()  # raises why there is none
    return 0


def _test_releases(options: argparse.Namespace, chosen: Sequence[Pin]) -> list[Result]:
    """Test releases side by side. The first one's output comes as it is written, that of the others
    when they have ended."""
    prepared = [prepare(options.root, pin, options.origin) for pin in chosen]
    narrowed = ["-k", options.expression] if options.expression else []
    words = [
        *narrowed,
        *(["--color=yes"] if OUT.is_terminal and not OUT.no_color else []),
    ]
    shared = share(len(chosen), os.cpu_count() or 1)
    workers = 1 if narrowed else shared.workers
    with (
        tempfile.TemporaryDirectory(prefix="patchqueue-tests-") as space,
        ThreadPoolExecutor(shared.revisions) as beside,
    ):
        logs = [None, *(Path(space, pin.tag) for pin in chosen[1:])]
        runs = []
        try:
            for one, log in zip(prepared, logs):
                if not log:
                    _begin(one.pin.tag)
                runs.append(beside.submit(test_revision, options.root, one, words, workers, log))
            return [_shown(run, pin, log) for run, pin, log in zip(runs, chosen, logs)]
        finally:
            beside.shutdown(cancel_futures=True)


def _shown(run: Future[Result], pin: Pin, log: Path | None) -> Result:
    """Wait for a release's tests, and print what they wrote to a log."""
    result = run.result()
    if log:
        _begin(pin.tag)
        OUT.file.write(log.read_text(errors="replace"))
    return result


def _begin(what: str) -> None:
    OUT.rule(what, align="left", style="dim")
    OUT.file.flush()  # pytest writes next


def _show_plan(root: Path, tool: bool, chosen: Sequence[Pin]) -> None:
    """What is tested, and about how long that takes on two processors."""
    names = [*(["the tool"] if tool else []), *(pin.tag for pin in chosen)]
    minutes = TOOL_MINUTES * tool + RELEASE_MINUTES * len(chosen)
    tell(f"to be tested: {', '.join(names)} (about {minutes:.0f} minutes on two processors)")
    lacking = [pin.tag for pin in chosen if not is_built(root, pin)]
    if lacking:
        tell(f"to be built first: the environment of {', '.join(lacking)} ({SIZE} each)")
    OUT.file.flush()
