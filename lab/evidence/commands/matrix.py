"""The command that says what a fleet of GPU hosts has to run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bundle import host
from patchqueue.commands import idle, paths
from patchqueue.environments.testing import has_environment
from patchqueue.upstream import pins as pinning

from .. import fleet


def add(commands: Any) -> None:
    """Add this module's command to the parser's."""
    text = (
        "print the GPU runs that are to be made, by release, GPU and model, as JSON for GitHub's"
        " strategy.matrix"
    )
    listed = commands.add_parser("matrix", help=text)
    listed.set_defaults(run=_matrix)
    add_argument = listed.add_argument
    kinds = "(default: every kind in evidence/)"
    words = "v0.5.9 or 0.5.9 (default: every pinned release)"
    add_argument("revisions", nargs="*", metavar="VERSION", help=words)
    for name, metavar, text in (
        ("--revision", "VERSION", "the same as VERSION alone; may be repeated"),
        (
            "--gpu",
            "NAME",
            f"only this kind, as H200; may be repeated {kinds}",
        ),
        ("--model", None, "only this model; may be repeated"),
    ):
        add_argument(name, action="append", default=[], metavar=metavar, help=text)
    text = f"the description of hosts without a package index (default: {host.DEFAULT})"
    add_argument("--host", type=paths.path, help=text)
    for name, text in (
        ("--stale", "only runs without evidence about today's queue"),
        ("--cpu", "list the releases that tests/revision can test without a GPU, instead"),
    ):
        add_argument(name, action="store_true", help=text)


def _matrix(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    named = dict.fromkeys([*options.revisions, *options.revision])
    chosen = [pins.find(name) for name in named] or list(pins.all)
    if options.cpu:
        idle.refuse(
            options, "with --cpu, which lists releases", "--gpu", "--model", "--stale", "--host"
        )
        tested = (pin for pin in chosen if has_environment(options.root, pin))
        rows: list[dict[str, object]] = [{"revision": pin.tag} for pin in tested]
    else:
        hosts = options.host or options.root / host.DEFAULT
        asked = (options.gpu, options.model, hosts, options.stale)
        rows = [one.as_json() for one in fleet.jobs(options.root, chosen, *asked)]
    # and no other word: nox hands on what goes to stderr as stdout
    print(json.dumps({"include": rows}))
    return 0
