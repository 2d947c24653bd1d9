"""The commands that run on a GPU, or keep what a GPU host found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchqueue.commands import idle, paths
from patchqueue.commands.entry import OUT
from patchqueue.commands.wheels import chosen_of, command
from patchqueue.hint import counted, to_type
from patchqueue.outcome import Problem, Refused
from patchqueue.upstream import pins as pinning

from .. import gpurun, harness, incoming
from ..pages import bench as page

RUNS = ("--from", "--here", "--python", "--out", "--site", "--pass")  # options of a run on a GPU


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    text = "find tiles for Mamba2's prefill kernels on this host's GPU, and print them"
    swept = command(commands, "sweep", _sweep, text)
    _add_run(swept)
    experts = "for routed experts instead, and write the tables that sglang reads"
    swept.add_argument("--experts", action="store_true", help=experts)
    text = "test a release on this host's GPU, and keep the results in evidence/"
    proven = command(commands, "gpu", _gpu, text)
    text = (
        "time the untouched and the patched release in one run on this host's GPU, keep the figures"
        f" in evidence/, and make {page.PAGE}"
    )
    timed = command(commands, "bench", _bench, text)
    for ran in (proven, timed):
        _add_run(ran)
        _add_take(ran)
    for name, text in (
        ("--model", "only this model of tests/gpu/models.py; may be repeated"),
        ("--mode", "only this mode, as breakable, and its reference; may be repeated"),
    ):
        proven.add_argument(name, action="append", default=[], help=text)
    agree = "compare answers with the untouched release's instead, and keep nothing in evidence/"
    proven.add_argument("--agree", action="store_true", help=agree)


def _add_run(ran: argparse.ArgumentParser) -> None:
    """The options of everything that runs on a GPU."""
    add = ran.add_argument
    here = "run in this interpreter, with --site, not in an environment of the release's own"
    add("--here", action="store_true", help=here)
    python = "with --here: run in this interpreter instead, as /usr/bin/python3"
    add("--python", type=paths.program, metavar="PATH", help=python)
    out = "write the result to this new folder, not to evidence/; status --merge gathers such"
    add("--out", type=paths.path, metavar="FOLDER", help=f"{out} folders")
    site = "a folder of packages, or an unpacked bundle; may be repeated"
    add("--site", type=paths.path, action="append", default=[], help=site)
    words = "pass this on to the script in tests/gpu, as --pass=--limit --pass=3000"
    add("--pass", dest="words", action="append", default=[], metavar="WORD", help=words)


def _add_take(ran: argparse.ArgumentParser) -> None:
    take = "run nothing; keep results that another host wrote"
    ran.add_argument("--take", type=paths.path, nargs="+", metavar="FILE", help=take)
    stale = "with --take: keep results about an earlier queue too"
    ran.add_argument("--stale", action="store_true", help=stale)


def _gpu(options: argparse.Namespace) -> int:
    if options.agree:
        idle.refuse(options, "with --agree, which keeps nothing in evidence/", "--take", "--stale")
    if not options.take:
        harness.refuse_unknown(options.root, options.model, options.mode)
    if options.agree:
        return _unkept(options, "run", experiment="agree")
    return _run(options, "run")


def _sweep(options: argparse.Namespace) -> int:
    return _unkept(options, "sweep_experts" if options.experts else "sweep")


def _unkept(options: argparse.Namespace, script: str, **more: Any) -> int:
    """Run a script that prints what it finds; nothing goes to evidence/. more: of the call."""
    code = 0
    for pin in chosen_of(options)[1]:
        ran = gpurun.run(options.root, pin, _call(options, script, **more))
        code = code or ran.code
        if ran.result:
            OUT.print(f"{ran.result} written")
    return code


def _call(options: argparse.Namespace, script: str, **more: Any) -> gpurun.Call:
    return gpurun.Call(
        script,
        _words(options),
        origin=options.origin,
        here=_here(options),
        sites=options.site,
        out=options.out,
        **more,
    )


def _here(options: argparse.Namespace) -> str:
    """The interpreter that --here and --python name; empty for one of the release's own. Raises
    Refused."""
    if options.python and not options.here:
        step = to_type("gpu", "--here --python", options.python)
        raise Refused(Problem("bad-words", "--python", "says which interpreter --here is", step))
    return (options.python or sys.executable) if options.here else ""


def _words(options: argparse.Namespace) -> list[str]:
    """What goes on to the script in tests/gpu."""
    words = list(options.words)
    for name in ("mode", "model"):
        if given := getattr(options, name, []):
            words = [f"--{name}", *given, *words]
    return words


def _bench(options: argparse.Namespace) -> int:
    code = _run(options, "gain")
    page.write(options.root)
    OUT.print(f"next: `git diff {page.PAGE}` shows what is new on it")
    return code


def _run(options: argparse.Namespace, script: str) -> int:
    """Run a script, or take what one wrote; and keep it."""
    pins, chosen = chosen_of(options)
    if options.take:
        given = ["--model", "--mode"] if "model" in options else []
        idle.refuse(options, "with --take, which runs nothing", *RUNS, *given)
        return _keep(options, pins, script, options.take)
    idle.refuse(options, "without --take", "--stale")
    if options.out and len(chosen) > 1:
        step = to_type("gpu", f"{chosen[0].tag} --out FOLDER")
        raise Refused(Problem("bad-words", "--out", "is for one run of one release", step))
    call = _call(options, script)
    done = [gpurun.run(options.root, pin, call) for pin in chosen]
    written = [ran.result for ran in done if ran.result]
    if written and options.out:
        gather = to_type("status", "--merge", options.out)
        OUT.print(f"next: {gather} gathers it; so does that of a folder around it")
    else:
        _keep(options, pins, script, written)
    return max(ran.code for ran in done)


def _keep(options: argparse.Namespace, pins: pinning.Pins, script: str, files: list[Path]) -> int:
    """Add results to evidence/. 1 where one was refused."""
    code = report(incoming.take(options.root, pins, files, options.stale)) if files else 0
    if files and script == "run":
        OUT.print(f"next: {to_type('status')} makes the tables from evidence/")
    return code


def report(gathered: Sequence[incoming.Gathered]) -> int:
    """Print what became of each result; 1 where one was refused."""
    for one in gathered:
        OUT.print(f"{one.file}: {one.fate}: {one.why}")
    fates = [one.fate for one in gathered]
    OUT.print(
        f"{counted(len(fates), 'result')}: "
        + ", ".join(f"{fates.count(fate)} {fate}" for fate in incoming.Fate if fate in fates)
    )
    return 1 if incoming.Fate.REFUSED in fates else 0
