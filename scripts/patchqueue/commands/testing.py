"""The command `test`: the tests of the tool and of releases."""

from __future__ import annotations

import argparse
import os

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
    words = ["-k", options.expression] if options.expression else []
    if is_tool_tested:
        _begin("the tool")
        if testing.test_tool(options.root, words):
            return 1
    # a second process for a few tests imports torch and sglang once more
    workers = 1 if words else min(os.cpu_count() or 1, testing.WORKERS)
    results = []
    for pin in chosen:
        _begin(pin.tag)
        results.append((pin, *testing.test_release(options.root, pin, words, workers)))
    for pin, code, is_edited in results:
        failed = Text(f"failed (pytest exit code {code})", "red")
        edits = "(the tree has edits of yours)" if is_edited else ""
        OUT.print(f"{pin.tag}:", failed if code else Text("passed", "green"), edits)
    return 1 if any(code for _, code, _ in results) else 0


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
