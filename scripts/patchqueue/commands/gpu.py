"""The commands about wheels, bundles and GPU hosts."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from ..environments.testing import has_environment
from ..hint import counted, to_type
from ..outcome import Problem, Refused
from ..proofs import benchpage, evidence, figurespage, fleet, gpurun, merge, status
from ..upstream import pins as pinning
from ..wheels import build, bundle, host
from . import idle, paths

OUT = Console(highlight=False, soft_wrap=True, markup=False)
MIB = 2**20
RUNS = ("--from", "--here", "--python", "--out", "--site", "--pass")  # options of a run on a GPU


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    made = _command(
        commands, "build", _build, "write a release's wheel with the queue on it to dist/"
    )
    made.add_argument(
        "--python",
        type=_python,
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        help="for this Python, as 3.12 (default: the one that runs this)",
    )
    made.add_argument(
        "--machine",
        type=_machine,
        default=platform.machine(),
        help="for this machine, x86_64 or aarch64 (default: this host's)",
    )
    made.add_argument(
        "--verbose", action="store_true", help="list the files that were added, changed and removed"
    )
    packed = _command(
        commands,
        "bundle",
        _bundle,
        "pack a patched release for a GPU host without a package index, in dist/bundle/TAG/",
    )
    packed.add_argument(
        "--host", type=paths.path, help=f"the host's description (default: {host.DEFAULT})"
    )
    packed.add_argument(
        "--sm", type=int, default=90, help="the GPU's compute capability (default 90, Hopper)"
    )
    packed.add_argument(
        "--part-size",
        type=_size,
        default=60,
        metavar="MIB",
        help="the largest size of one part (default 60)",
    )
    sessions = (
        (
            "sweep",
            _sweep,
            "find tiles for Mamba2's prefill kernels on this host's GPU, and print them",
        ),
        ("gpu", _gpu, "test a release on this host's GPU, and keep the results in evidence/"),
        (
            "bench",
            _bench,
            (
                "time a release on this host's GPU, keep the figures in evidence/, and make"
                " docs/bench.md"
            ),
        ),
    )
    for name, run, text in sessions:
        ran = _command(commands, name, run, text)
        ran.add_argument(
            "--here",
            action="store_true",
            help="run in this interpreter, with --site, not in an environment of the release's own",
        )
        ran.add_argument(
            "--python",
            type=paths.program,
            metavar="PATH",
            help="with --here: run in this interpreter instead, as /usr/bin/python3",
        )
        ran.add_argument(
            "--out",
            type=paths.path,
            metavar="FOLDER",
            help=(
                "write the result to this new folder, not to evidence/; status --merge gathers such"
                " folders"
            ),
        )
        ran.add_argument(
            "--site",
            type=paths.path,
            action="append",
            default=[],
            help="a folder of packages, or an unpacked bundle; may be repeated",
        )
        if name != "sweep":
            ran.add_argument(
                "--take",
                type=paths.path,
                nargs="+",
                metavar="FILE",
                help="run nothing; keep results that another host wrote",
            )
            ran.add_argument(
                "--stale",
                action="store_true",
                help="with --take: keep results about an earlier queue too",
            )
        ran.add_argument(
            "--pass",
            dest="words",
            action="append",
            default=[],
            metavar="WORD",
            help="pass this on to the script in tests/gpu, as --pass=--limit --pass=3000",
        )
        if name == "gpu":
            ran.add_argument(
                "--model",
                action="append",
                default=[],
                help="only this model of tests/gpu/models.py; may be repeated",
            )
            ran.add_argument(
                "--mode",
                action="append",
                default=[],
                help="only this mode, as breakable, and its reference; may be repeated",
            )
            ran.add_argument(
                "--agree",
                action="store_true",
                help=(
                    "compare answers with the untouched release's instead, and keep nothing in"
                    " evidence/"
                ),
            )
    ran.add_argument(
        "--gain",
        action="store_true",
        help="time the untouched and the patched release in one run, instead of graph modes",
    )
    ran.add_argument(
        "--page",
        action="store_true",
        help="run nothing; make docs/bench.md and its plot from evidence/",
    )
    shown = commands.add_parser(
        "status",
        help=(
            f"make the support matrix in {status.PAGE}, and the list by release in {status.PATCHES}"
        ),
    )
    shown.set_defaults(run=_status)
    shown.add_argument(
        "--merge",
        type=paths.path,
        metavar="DIR",
        help=(
            f"first check every {merge.RESULT} below DIR, as --take does, and keep the best run of"
            " each model and mode"
        ),
    )
    text = f"make {figurespage.PAGE} and its plots from evidence/"
    drawn = commands.add_parser("figures", help=text)
    drawn.set_defaults(run=_figures)
    drawn.add_argument(
        "--page",
        action="store_true",
        required=True,
        help=f"make the page; without it {to_type('figures')} measures the tool",
    )
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


def _python(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Python such as 3.12")
    return text


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size in MiB such as 60")
    return size


def _machine(text: str) -> str:
    """As platform.machine() names it on Linux, whatever others call it."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(text.lower(), text)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=text)
    made.set_defaults(run=run)
    made.add_argument(
        "revisions",
        nargs="*",
        metavar="VERSION",
        help=f"v0.5.9 or 0.5.9 (default: {paths.DEFAULT})",
    )
    made.add_argument(
        "--from",
        dest="origin",
        type=paths.place,
        metavar="PATH",
        help="take the release from this wheel or folder of wheels",
    )
    return made


def _chosen(options: argparse.Namespace) -> tuple[pinning.Pins, list[pinning.Pin]]:
    pins = pinning.load(options.root)
    return pins, [pins.find(name) for name in options.revisions] or [pins.default]


def _shown(options: argparse.Namespace, path: Path) -> str:
    return paths.shown(path.relative_to(options.root))


def _build(options: argparse.Namespace) -> int:
    for pin in _chosen(options)[1]:
        started = time.monotonic()
        made = build.build(
            options.root,
            pin,
            build.Target(options.python, options.machine),
            options.origin,
            options.root / "dist",
        )
        OUT.print(
            f"{_shown(options, made.path)}: version {made.version},"
            f" {time.monotonic() - started:.1f} s\nfrom {made.origin}\nsha256 {made.sha256}"
        )
        kinds = (("added", made.added), ("changed", made.changed), ("removed", made.removed))
        for name in (
            f"{what}: {name}" for what, names in kinds if options.verbose for name in names
        ):
            OUT.print(f"  {name}")
        OUT.print(
            "files:"
            f" {', '.join(f'{len(names)} {what}' for what, names in kinds)}"
            f"{'' if options.verbose else ' (--verbose lists them)'}"
        )
        wheel = shlex.quote(_shown(options, made.path))
        OUT.print(
            f"into an empty environment: `uv pip install --exclude-newer {pin.resolve_as_of}"
            f" --prerelease=allow {wheel}`"
        )
        OUT.print(f"next: `pip install --no-deps {wheel}`, over an installed sglang {pin.version}")
    return 0


def _bundle(options: argparse.Namespace) -> int:
    pins, chosen = _chosen(options)
    description = options.host or options.root / host.DEFAULT
    for pin in chosen:
        made = bundle.pack(
            options.root,
            pins,
            pin,
            description,
            options.sm,
            round(options.part_size * MIB),
            options.origin,
        )
        sizes = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in made.sizes.items())
        OUT.print(
            f"{_shown(options, made.path)}: {sizes},"
            f" {counted(len(made.manifest['packages']), 'package')},"
            f" {counted(len(made.manifest['parts']), 'part')}"
        )
        OUT.print(
            "next: copy that folder to the host; there `./unpack FOLDER && python3"
            " FOLDER/tests/gpu/run.py --out RESULTS`"
        )
    return 0


def _gpu(options: argparse.Namespace) -> int:
    if options.agree:
        idle.refuse(options, "with --agree, which keeps nothing in evidence/", "--take", "--stale")
    gpurun.refuse_unknown(options.root, options.model, options.mode)
    return _unkept(options, "agree") if options.agree else _run(options, "run")


def _sweep(options: argparse.Namespace) -> int:
    return _unkept(options, "sweep")


def _unkept(options: argparse.Namespace, script: str) -> int:
    """Run a script that prints what it finds; nothing goes to evidence/."""
    code = 0
    for pin in _chosen(options)[1]:
        ran = gpurun.run(
            options.root,
            pin,
            script,
            _here(options),
            options.site,
            options.origin,
            _words(options),
            options.out,
        )
        code = code or ran.code
        if ran.result:
            OUT.print(f"{ran.result} written")
    return code


def _here(options: argparse.Namespace) -> str:
    """The interpreter that --here and --python name; empty for one of the release's own. Raises
    Refused."""
    if options.python and not options.here:
        raise Refused(
            Problem(
                "bad-words",
                "--python",
                "says which interpreter --here is",
                to_type("gpu", "--here --python", options.python),
            )
        )
    return (options.python or sys.executable) if options.here else ""


def _words(options: argparse.Namespace) -> list[str]:
    """What goes on to the script in tests/gpu."""
    return [
        word
        for name in ("model", "mode")
        if (given := getattr(options, name, []))
        for word in (f"--{name}", *given)
    ] + options.words


def _bench(options: argparse.Namespace) -> int:
    if options.page:
        idle.refuse(
            options, "with --page, which runs nothing", *RUNS, "--gain", "--take", "--stale"
        )
    code = 0 if options.page else _run(options, "gain" if options.gain else "bench")
    drawn = benchpage.write(options.root)
    without = "no plot: matplotlib is not installed, or nothing was measured"
    plots = ", its plots drawn" if drawn else f"; {without}"
    OUT.print(f"{benchpage.PAGE} written{plots}")
    OUT.print(f"next: `git diff {benchpage.PAGE}` shows what is new on it")
    return code


def _run(options: argparse.Namespace, script: str) -> int:
    pins, chosen = _chosen(options)
    if options.take:
        given = ["--gain"] if "gain" in options else ["--model", "--mode"]
        idle.refuse(options, "with --take, which runs nothing", *RUNS, *given)
    else:
        idle.refuse(options, "without --take", "--stale")
    if options.out and len(chosen) > 1:
        raise Refused(
            Problem(
                "bad-words",
                "--out",
                "is for one run of one release",
                to_type("gpu", f"{chosen[0].tag} --out FOLDER"),
            )
        )
    here, words = _here(options), _words(options)
    files, codes = list(options.take or []), []
    for pin in [] if options.take else chosen:
        ran = gpurun.run(
            options.root, pin, script, here, options.site, options.origin, words, options.out
        )
        codes.append(ran.code)
        files += [ran.result] if ran.result and not options.out else []
        if ran.result and options.out:
            OUT.print(
                f"next: {to_type('status', '--merge', options.out)} gathers it; so does that of a"
                " folder around it"
            )
    for file in files:
        taken = evidence.take(options.root, pins, file, options.stale)
        kept = f", {taken.kept} kept from before" if taken.kept else ""
        OUT.print(
            f"{taken.path.relative_to(options.root)}: {counted(taken.runs, 'run')}{kept};"
            f" {'all passed' if taken.passed else 'not all passed'}"
        )
    if files and script == "run":
        OUT.print(f"next: {to_type('status')} makes the tables from evidence/")
    return max(codes, default=0)


def _status(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    gathered = merge.merge(options.root, pins, options.merge) if options.merge else []
    changed = status.write(options.root, pins)
    rows = status.matrix(options.root, pins)
    OUT.print(status.markdown(rows), end="")
    OUT.print(
        f"{' and '.join(map(str, changed))} rewritten"
        if changed
        else f"{status.PAGE} and {status.PATCHES} said so already"
    )
    for one in gathered:
        taken = one.fate is merge.Fate.TAKEN
        where = f" into {one.kept.relative_to(options.root)}" if taken else ""
        OUT.print(f"{one.file}: {one.fate}{where}: {one.why}")
    if gathered:
        fates = [one.fate for one in gathered]
        OUT.print(
            f"{counted(len(fates), 'result')}: "
            + ", ".join(f"{fates.count(fate)} {fate}" for fate in merge.Fate if fate in fates)
        )
    OUT.print(f"next: {to_type('matrix', '--stale')} says what is left to run")
    return 1 if any(one.fate is merge.Fate.REFUSED for one in gathered) else 0


def _figures(options: argparse.Namespace) -> int:
    drawn = figurespage.write(options.root)
    OUT.print(
        f"{figurespage.PAGE} written; "
        + (
            ", ".join(str(file.relative_to(options.root)) for file in drawn) + " drawn"
            if drawn
            else "no plot: matplotlib is not installed, or nothing was measured"
        )
    )
    OUT.print(f"next: `git diff {figurespage.PAGE}` shows what is new on it")
    return 0


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
