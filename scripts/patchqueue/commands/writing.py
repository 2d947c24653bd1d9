"""The commands that write files of the queue."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..environments.lock import compile_lock
from ..environments.testing import (
    lock_file,
)
from ..hint import counted, to_type
from ..laying.refresh import new, refresh
from ..outcome import Refused
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from ..upstream.release import add_pin, named_version
from . import idle, paths, releases
from .releases import OUT, relative, tell

LOG = logging.getLogger(__name__)


def add(commands: Any) -> None:
    """The commands that write files of the queue."""
    text = "write the edits of work/TAG/ back to patches/, series and overlay/"
    add = "put edits of files that are in no patch into the top one"
    releases.command(commands, "refresh", _refresh, text, paths.DEFAULT, "--all", add=add)
    text = "start an empty patch on top of work/TAG/; name it topic/verb-object"
    releases.command(commands, "new", _new, text, "")
    added = releases.command(commands, "pin", _pin, "add a release to upstream/pins.toml", "")
    text = "a folder that holds all wheels of the release"
    added.add_argument("--from", dest="origin", type=paths.place, metavar="FOLDER", help=text)
    text = "of a pinned release: resolve its test environment as of its release day, anew"
    added.add_argument("--lock", action="store_true", help=text)


def _refresh(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in releases.chosen(options, pins, [pins.default]):
        written, report = refresh(options.root, pins, pin, options.add)
        for file in written:
            OUT.print(f"{file.path}: {file.why}")
        if not written:
            OUT.print(f"{pin.tag}: nothing to write, the queue holds it all")
        if report is None:
            what = "was written, but is not complete yet (see above)"
            step = f"fill in the header in patches/, then {to_type('refresh', pin.tag)} again"
            raise Refused.of("unfinished", "the queue", what, step)
    OUT.print(f"next: {to_type('check')} replays the queue on every release")
    return 0


def _new(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    names = [word for word in options.words if "/" in word]
    if len(names) != 1 or len(options.words) > 2:
        what = "takes one name with a slash, and at most one revision"
        raise Refused.of("bad-words", "new", what, to_type("new", "v0.5.9 topic/verb-object"))
    revisions = [pins.find(word) for word in options.words if "/" not in word] or [pins.default]
    file = new(options.root, revisions[0], names[0])
    tree = f"work/{revisions[0].tag}"
    OUT.print(f"{relative(file, options.root)} is the top patch now")
    quilt = "`quilt" if shutil.which("quilt") else to_type("quilt", revisions[0].tag)[:-1]
    OUT.print(f"In {tree}: {quilt} add python/sglang/…` before you edit a file.")
    OUT.print(f"next: {to_type('refresh', revisions[0].tag)} then writes it to patches/ and series")
    return 0


def _pin(options: argparse.Namespace) -> int:
    if not options.words:
        raise Refused.of("bad-words", "pin", "which release?", to_type("pin", "0.5.24"))
    if options.lock:
        idle.refuse(options, "with --lock, which reads no wheel", "--from")
        pins = pinning.load(options.root)
        return _lock(options.root, [pins.find(word) for word in options.words])
    for word in options.words:
        named_version(word)  # all of them before the first is fetched
    for word in options.words:
        pin = add_pin(options.root, word, options.origin)
        tell(
            f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} with one tree {pin.tree}, released"
            f" {pin.released}"
        )
        OUT.print(f"next: {to_type('rebase', pin.version)} carries the queue to it")
    return 0


def _lock(root: Path, chosen: Sequence[Pin]) -> int:
    """Resolve the test environments of pinned releases."""
    for pin in chosen:
        file = lock_file(root, pin)
        LOG.info(f"resolving {pin.tag}'s environment as of {pin.resolve_as_of} (about a minute)")
        compile_lock(str(pin.version), pin.resolve_as_of, file)
        OUT.print(f"{relative(file, root)}: as of {pin.resolve_as_of}")
        OUT.print(
            f"next: {to_type('test', pin.tag)} builds the environment and runs the tests in it"
        )
    return 0
