"""The commands that write files of the queue."""

from __future__ import annotations

import argparse
import logging
import shutil
from typing import Any

from ..environments.lock import compile_lock
from ..environments.testing import (
    lock_file,
)
from ..hint import counted, to_type
from ..laying.refresh import new, refresh
from ..outcome import Refused
from ..queue.header import documentation
from ..upstream import pins as pinning
from ..upstream.pin import add as add_pin
from ..upstream.pin import version_of
from . import paths, releases
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
    text = "resolve a release's test environment as of its release day"
    releases.command(commands, "lock", _lock, text, paths.DEFAULT, "--all")
    text = "print the patch header's fields as a Markdown table"
    commands.add_parser("fields", help=text).set_defaults(run=_fields)


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
    own = shutil.which("quilt")
    OUT.print(
        f"{relative(file, options.root)} is the top patch now{f'; in {tree}:' if own else ':'}"
    )
    quilt = "quilt" if own else to_type("quilt", revisions[0].tag).strip("`")
    for words, why in (
        ("add python/sglang/…", "before you edit a file"),
        ("header -e", "to fill in its header"),
    ):
        OUT.print(f"  {f'{quilt} {words}':<{len(quilt) + 20}}  {why}")
    OUT.print(f"next: {to_type('refresh', revisions[0].tag)} then writes it to patches/ and series")
    return 0


def _pin(options: argparse.Namespace) -> int:
    if not options.words:
        raise Refused.of("bad-words", "pin", "which release?", to_type("pin", "0.5.24"))
    for word in options.words:
        version_of(word)  # all of them before the first is fetched
    for word in options.words:
        pin = add_pin(options.root, word, options.origin)
        tell(
            f"{pin.tag}: {counted(len(pin.wheels), 'wheel')} with one tree {pin.tree}, released"
            f" {pin.released}"
        )
        OUT.print(f"next: {to_type('rebase', pin.version)} carries the queue to it")
    return 0


def _lock(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    for pin in releases.chosen(options, pins, [pins.default]):
        file = lock_file(options.root, pin)
        LOG.info(f"resolving {pin.tag}'s environment as of {pin.resolve_as_of} (about a minute)")
        compile_lock(str(pin.version), pin.resolve_as_of, file)
        OUT.print(f"{relative(file, options.root)}: as of {pin.resolve_as_of}")
        OUT.print(
            f"next: {to_type('test', pin.tag)} builds the environment and runs the tests in it"
        )
    return 0


def _fields(options: argparse.Namespace) -> int:
    print(documentation())
    return 0
