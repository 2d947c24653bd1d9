"""The commands of the lab: gpu and sweep, which run on a GPU; status, which makes the pages; and
bundle."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from bundle import command as bundle
from patchqueue.commands import terminal
from patchqueue.commands.terminal import OUT, Command, chosen_releases, flag, option
from patchqueue.outcome import Problem, Refused, counted, to_type
from patchqueue.upstream import pins as pinning

from . import footprints, front, gpurun, harness, incoming, matrix, picture, results
from .pages import bench, status


def _gpu(options: argparse.Namespace) -> int:
    harness.refuse_unknown(options.root, options.model, options.mode)
    if options.agree:
        return _run(options, "run", kept=False, experiment="agree")
    if not options.bench:
        return _run(options, "run")
    code = _run(options, "gain")
    bench.write(options.root)
    OUT.print(f"next: `git diff {bench.PAGE}` shows what is new on it")
    return code


def _sweep(options: argparse.Namespace) -> int:
    return _run(options, "sweep_experts", kept=False)


def _run(options: argparse.Namespace, script: str, kept: bool = True, **more: Any) -> int:
    """Run a script, and take its result into evidence/ if it is `kept`. more: of the call."""
    pins = pinning.load(options.root)
    chosen = chosen_releases(options, pins)
    if options.out and len(chosen) > 1:
        step = to_type("gpu", f"{chosen[0].tag} --out FOLDER")
        raise Refused(Problem("bad-words", "--out", "is for one run of one release", step))
    done = [gpurun.run(options.root, pin, _call(options, script, **more)) for pin in chosen]
    written = [ran.result for ran in done if ran.result]
    if not kept:
        for result in written:
            OUT.print(f"{result} written")
    elif written and options.out:
        merge = to_type("status", "--merge", options.out)
        OUT.print(f"next: {merge} gathers it; so does that of a folder around it")
    elif written:
        report(incoming.take(options.root, pins, written))
        OUT.print(f"next: {to_type('status')} makes the tables from evidence/")
    return max(ran.code for ran in done)


def _call(options: argparse.Namespace, script: str, **more: Any) -> gpurun.Call:
    """The call of a script of tests/gpu. Raises Refused where --python is given without --here."""
    if options.python and not options.here:
        step = to_type("gpu", "--here --python", options.python)
        raise Refused(Problem("bad-words", "--python", "says which interpreter --here is", step))
    words = list(options.words)
    for name in ("mode", "model"):
        if given := getattr(options, name, []):
            words = [f"--{name}", *given, *words]
    here = (options.python or sys.executable) if options.here else ""
    return gpurun.Call(script, words, here=here, sites=options.site, out=options.out, **more)


def report(gathered: Sequence[incoming.Gathered]) -> int:
    """Print what became of each result; 1 where one was refused."""
    for result in gathered:
        OUT.print(f"{result.file}: {result.fate}: {result.why}")
    fates = [result.fate for result in gathered]
    each = (f"{fates.count(fate)} {fate}" for fate in incoming.Fate if fate in fates)
    OUT.print(f"{counted(len(fates), 'result')}: {', '.join(each)}")
    return 1 if incoming.Fate.REFUSED in fates else 0


def _status(options: argparse.Namespace) -> int:
    root, code, given = options.root, 0, options.merge
    pins = pinning.load(root)
    if given:
        files = [given] if given.is_file() else incoming.found(root, given)
        code = report(incoming.take(root, pins, files))
    rows = results.load(root)
    results.save(root, footprints.compared(root, pins, rows, harness.identity(root)))
    known = matrix.matrix(root, pins)
    tables = status.tables(root, known)
    changed = [*status.write(root, tables), *bench.write(root)]
    OUT.print(tables, end="")
    if options.plot:
        drawn = picture.draw(front.measured(results.load(root)), root)
        changed += [file.relative_to(root) for file in drawn]
    rewritten = f"{' and '.join(map(str, changed))} rewritten"
    OUT.print(rewritten if changed else "the pages said so already")
    if left := matrix.left_to_run(root, known):
        runs = to_type("gpu", *left)
        OUT.print(f"next: {runs} runs each release that lacks results about today's patches")
    for tag, models in matrix.drawn(root, pins).items():
        again = to_type("gpu", tag, *(f"--model {model}" for model in models))
        OUT.print(f"next: {again} repeats runs whose files are the same today, drawn at random")
    return code


def _repeated(name: str, help: str, **more: Any) -> terminal.Argument:
    return option(name, help, action="append", default=[], **more)


HERE = "run in this interpreter, with --site, not in an environment of the release's own"
PYTHON = "with --here: run in this interpreter instead, as /usr/bin/python3"
OUT_FOLDER = "write the result to this new folder, not to evidence/; status --merge gathers such"
SITE = "a folder of packages, or an unpacked bundle; may be repeated"
PASS = "pass this on to the script in tests/gpu, as --pass=--limit --pass=3000"
MODE = "only this mode, as breakable, and its reference"
AGREE = "compare answers with the untouched release's instead, and keep nothing in evidence/"
BENCH = "time the untouched and the patched release in one run instead, keep the figures in"
TABLES = "find tiles for routed experts on this host's GPU, and write the tables that sglang reads"
EXPERTS = "the kernels that are swept: no others are, with or without this"
MERGE = "first add this result, or every result below this folder, to evidence/; one about another"
MATRIX = f"make the support matrix in {status.PAGE}, and {bench.PAGE}; name what is left to run"
RUN = (
    terminal.releases(),
    flag("--here", HERE),
    option("--python PATH", PYTHON, type=terminal.program),
    option("--out FOLDER", f"{OUT_FOLDER} folders", type=terminal.path),
    _repeated("--site DIR", SITE, type=terminal.path),
    _repeated("--pass WORD", PASS, dest="words"),
)
ASKED = (
    _repeated("--model NAME", "only this model of tests/gpu/models.py; may be repeated"),
    _repeated("--mode NAME", f"{MODE}; may be repeated"),
    (flag("--agree", AGREE), flag("--bench", f"{BENCH} evidence/, and make {bench.PAGE}")),
)
PLOT = "draw the front page's picture too, from evidence/"
GPU = "test a release on this host's GPU, and keep the results in evidence/"
GATHERED = (
    option("--merge PATH", f"{MERGE} tree than today's is refused", type=terminal.path),
    flag("--plot", PLOT),
)
COMMANDS = (
    Command("sweep", _sweep, TABLES, "v0.5.9", (*RUN, flag("--experts", EXPERTS))),
    Command("gpu", _gpu, GPU, "v0.5.9 --model llama", (*RUN, *ASKED)),
    Command("status", _status, MATRIX, "--merge results", GATHERED),
    *bundle.COMMANDS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the exit codes of terminal.run."""
    return terminal.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    what = "Prove pinned sglang releases on GPUs, and report the results."
    return terminal.parser(what, COMMANDS)
