"""The command that runs upstream's own unit tests on a release with the queue and without it."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from ..environments import upstream_tests
from ..environments.suite import Suite
from ..environments.testing import prepare
from ..environments.upstream_tests import LIMIT, Compared
from ..hint import counted, to_type
from ..outcome import Refused
from ..upstream import pins as pinning
from . import paths, releases
from .releases import OUT, tell


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    added = releases.command(
        commands,
        "upstream-tests",
        _run,
        "run upstream's unit tests for CPUs on a release, and list which the queue breaks",
        paths.DEFAULT,
    )
    text = "a checkout of sglang at the release's tag; nothing is written into it"
    added.add_argument("--checkout", type=paths.path, metavar="PATH", required=True, help=text)
    text = "only the files of tests whose path holds this text, as mem_cache"
    added.add_argument("--only", metavar="TEXT", default="", help=text)
    text = f"seconds that a file may take on one tree (default: {LIMIT})"
    added.add_argument("--limit", type=_seconds, metavar="SECONDS", default=LIMIT, help=text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def _run(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = releases.chosen(options, pins, [pins.default])
    if len(chosen) > 1:
        what = "names several releases; a checkout is at the tag of one"
        step = f"{to_type('upstream-tests', chosen[0].tag, '--checkout PATH')}, one after the other"
        raise Refused.of("bad-words", " ".join(options.words), what, step)
    pin, started = chosen[0], time.monotonic()
    checkout = options.checkout.absolute()
    suite, pristine = upstream_tests.release_of(options.root, pin, checkout)
    files = _narrowed(suite, options.only)
    tell(f"{pin.tag}: {counted(len(files), 'file')} of upstream's unit tests, on both trees")
    prepared = prepare(options.root, pin, None)
    every: list[Compared] = []
    with upstream_tests.laid(prepared, checkout, pristine, options.limit) as run:
        for each in upstream_tests.run_all(run, files, os.cpu_count() or 1):
            every.append(each)
            tell(f"[{len(every)}/{len(files)}] {each.file}: {_line(each)}")
            OUT.file.flush()
    both, broken = sum(each.both for each in every), [one for one in every if one.broken]
    if broken:
        tell("\nPassed on the pristine tree alone:")
    for test, reason in ((test, why) for one in broken for test, why in one.broken.items()):
        tell(f"  {test}\n      {reason}")
    lost = sum(len(one.broken) for one in broken)
    tell(
        f"\n{pin.tag}: {counted(both, 'test')} passed on both trees, {lost} on the pristine tree"
        f" alone; {counted(len(files), 'file')} in {time.monotonic() - started:.1f} s,"
        f" {counted(len(suite.left_out), 'other file')} of tests are not for this"
    )
    if not both and not broken:
        what = "no test passed on the pristine tree, so that nothing is compared"
        step = "the lines above say why; a checkout is to be whole, and at the release's tag"
        raise Refused.of("nothing-passed", pin.tag, what, step)
    return 1 if broken else 0


def _narrowed(suite: Suite, only: str) -> list[str]:
    files = [file for file in suite.chosen if only in file]
    if not files:
        what = f"is in none of the paths of {counted(len(suite.chosen), 'file')} of tests"
        raise Refused.of("no-tests", repr(only), what, f"name a part of one, as {suite.chosen[0]}")
    return files


def _line(each: Compared) -> str:
    """What became of a file, in a few words."""
    lost = f", {len(each.broken)} passed on the pristine tree alone" if each.broken else ""
    return each.ended or f"{each.both} passed on both{lost}"
