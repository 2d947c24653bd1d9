"""The command that runs upstream's own unit tests on a release with the queue and without it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..environments import upstream_tests, verdicts
from ..environments.suite import Suite
from ..environments.testing import prepare
from ..environments.upstream_tests import LIMIT, Compared
from ..environments.verdicts import LISTS, Cases, Verdict
from ..files import atomic
from ..hint import counted, to_type
from ..outcome import Refused
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from . import paths, releases
from .releases import OUT, tell

SHOWN = 20  # tests of one list; all are in what --out writes


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    added = releases.command(
        commands,
        "upstream-tests",
        _run,
        "run upstream's unit tests for CPUs on a release, pristine and patched, and compare",
        paths.DEFAULT,
    )
    text = "a checkout of sglang at the release's tag; nothing is written into it"
    added.add_argument("--checkout", type=paths.path, metavar="PATH", required=True, help=text)
    text = "only the files of tests whose path holds this text, as mem_cache"
    added.add_argument("--only", metavar="TEXT", default="", help=text)
    text = f"seconds that a file may take on one tree (default: {LIMIT})"
    added.add_argument("--limit", type=_seconds, metavar="SECONDS", default=LIMIT, help=text)
    text = "write every test that did not pass on both trees, as JSON"
    added.add_argument("--out", type=paths.file, metavar="FILE", help=text)


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
    with upstream_tests.laid(prepared, checkout, pristine, options.limit) as run:
        every = []
        for each in upstream_tests.run_all(run, files, os.cpu_count() or 1):
            every.append(each)
            tell(f"[{len(every)}/{len(files)}] {each.file}: {_line(each)}")
            OUT.file.flush()
    verdict = verdicts.joined(each.verdict for each in every)
    if options.out:
        _write(options.out, pin, suite, every, verdict)
    _show(pin, suite, verdict, len(files), time.monotonic() - started)
    if not verdict.both and not verdict.pristine_only:
        what = "no test passed on the pristine tree, so that nothing is compared"
        step = f"see why: {to_type('upstream-tests', pin.tag, '--checkout PATH --out FILE')}"
        raise Refused.of("nothing-passed", pin.tag, what, step)
    return 1 if verdict.pristine_only else 0


def _narrowed(suite: Suite, only: str) -> list[str]:
    files = [file for file in suite.chosen if only in file]
    if not files:
        what = f"is in none of the paths of {counted(len(suite.chosen), 'file')} of tests"
        raise Refused.of("no-tests", repr(only), what, f"name a part of one, as {suite.chosen[0]}")
    return files


def _line(each: Compared) -> str:
    """What became of a file, in a few words."""
    verdict = each.verdict
    counts = {"passed on both": verdict.both} | {
        words: len(getattr(verdict, name)) for name, words in WORDS.items()
    }
    said = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return f"{said} ({each.seconds:.1f} s)"


WORDS = dict(
    zip(
        LISTS,
        (
            "passed on the pristine tree alone",
            "passed on the patched tree alone",
            "flaky",
            "skipped on both",
            "passed on neither",
        ),
    )
)


def _show(pin: Pin, suite: Suite, verdict: Verdict, files: int, seconds: float) -> None:
    for name in ("pristine_only", "patched_only", "flaky"):
        _show_list(f"\n{WORDS[name][:1].upper()}{WORDS[name][1:]}", getattr(verdict, name))
    _show_failed(verdict)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"\n{pin.tag}")
    table.add_column("tests", justify="right", vertical="bottom")
    table.add_row("passed on both", str(verdict.both))
    for name, words in WORDS.items():
        bad = name == "pristine_only" and verdict.pristine_only
        table.add_row(words, str(len(getattr(verdict, name))), style="red" if bad else "")
    OUT.print(table)
    skipped = counted(len(suite.left_out), "other file")
    tell(f"\n{counted(files, 'file')} in {seconds:.1f} s; {skipped} of tests are not for this")


def _show_list(title: str, cases: Cases) -> None:
    """Each test with what became of it on the other tree."""
    if not cases:
        return
    tell(f"{title}:")
    for name, case in list(cases.items())[:SHOWN]:
        tell(f"  {name}\n      {case}")
    if len(cases) > SHOWN:
        tell(f"  and {len(cases) - SHOWN} more: `--out FILE` writes them all")


def _show_failed(verdict: Verdict) -> None:
    """What passed on neither tree, counted by kind."""
    kinds = Counter(verdicts.kind(case.reason) for case in verdict.failed.values())
    if kinds:
        tell("\nPassed on neither tree, by reason:")
    for name, count in kinds.most_common():
        tell(f"  {count:>5}  {name}")


def _write(out: Path, pin: Pin, suite: Suite, every: Sequence[Compared], verdict: Verdict) -> None:
    lists = {
        name: {
            test: {"state": str(case.state), "reason": case.reason}
            for test, case in sorted(getattr(verdict, name).items())
        }
        for name in LISTS
    }
    found = {
        "release": str(pin.version),
        "passed on both": verdict.both,
        **{WORDS[name]: lists[name] for name in LISTS},
        "seconds": {each.file: round(each.seconds, 1) for each in every},
        "not run": dict(sorted(suite.left_out.items())),
    }
    atomic.write(out, (json.dumps(found, indent=1) + "\n").encode())
