"""The command that says what a fleet of GPU hosts has to run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from patchqueue.commands import idle, paths
from patchqueue.environments.testing import has_environment
from patchqueue.upstream import pins as pinning
from patchqueue.wheels import host

from .. import fleet


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    text = (
        "print the GPU runs that are to be made, by release, GPU and model, as JSON for GitHub's"
        " strategy.matrix"
    )
    listed = commands.add_parser("matrix", help=text)
    listed.set_defaults(run=_matrix)
    listed.add_argument(
        "revisions",
        nargs="*",
        metavar="VERSION",
        help="v0.5.9 or 0.5.9 (default: every pinned release)",
    )
    listed.add_argument(
        "--revision",
        dest="more",
        action="append",
        default=[],
        metavar="VERSION",
        help="the same as VERSION alone; may be repeated",
    )
    listed.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="only this kind, as H200; may be repeated (default: every kind in evidence/)",
    )
    listed.add_argument(
        "--model", action="append", default=[], help="only this model; may be repeated"
    )
    listed.add_argument(
        "--stale", action="store_true", help="only runs without evidence about today's queue"
    )
    listed.add_argument(
        "--host",
        type=paths.path,
        help=f"the description of hosts without a package index (default: {host.DEFAULT})",
    )
    listed.add_argument(
        "--cpu",
        action="store_true",
        help="list the releases that tests/revision can test without a GPU, instead",
    )


def _matrix(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = [
        pins.find(name) for name in dict.fromkeys([*options.revisions, *options.more])
    ] or list(pins.all)
    if options.cpu:
        idle.refuse(
            options, "with --cpu, which lists releases", "--gpu", "--model", "--stale", "--host"
        )
        rows: list[dict] = [
            {"revision": pin.tag} for pin in chosen if has_environment(options.root, pin)
        ]
    else:
        found = fleet.jobs(
            options.root,
            chosen,
            options.gpu,
            options.model,
            options.host or options.root / host.DEFAULT,
            options.stale,
        )
        rows = [one.as_json() for one in found]
    # and no other word: nox hands on what goes to stderr as stdout
    print(json.dumps({"include": rows}))
    return 0
