"""The commands about wheels, bundles and GPU hosts; cli.py hooks them in. With cli.py the only module that prints."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from . import benchpage, build, bundle, evidence, gpurun, host, status
from . import pins as pinning

OUT = Console(highlight=False, soft_wrap=True, markup=False)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
MIB = 2**20


def add(commands) -> None:
    """Add this module's commands to the parser's."""
    made = _command(commands, "build", _build, "repack a release's official wheel with the queue on it: dist/*.whl")
    made.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="as 3.12 (default: this one's)")
    made.add_argument("--machine", default=platform.machine(), help="as x86_64 or aarch64 (default: this one)")
    packed = _command(commands, "bundle", _bundle, "pack a patched release for a GPU host without a package index: dist/bundle/TAG/")
    packed.add_argument("--host", type=Path, help=f"the host's description (default: {host.DEFAULT})")
    packed.add_argument("--sm", type=int, default=90, help="the GPU's compute capability (default 90, Hopper)")
    packed.add_argument("--part-size", type=float, default=60, metavar="MIB", help="what one part may have (default 60)")
    for name, run, text in (("gpu", _gpu, "prove a release on this host's GPU; keep what was found in evidence/"), ("bench", _bench, "time a release on this host's GPU; keep the figures in evidence/, make docs/bench.md")):
        ran = _command(commands, name, run, text)
        ran.add_argument("--here", action="store_true", help="in this interpreter, with --site, not in an environment of the release's own")
        ran.add_argument("--site", type=Path, action="append", default=[], help="a folder of packages, or an unpacked bundle; may be given again")
        ran.add_argument("--take", type=Path, nargs="+", metavar="FILE", help="run nothing: keep results that another host wrote")
        ran.add_argument("--stale", action="store_true", help="with --take: also what is about an earlier queue")
        ran.add_argument("--pass", dest="words", action="append", default=[], metavar="WORD", help="hand this on to tests/gpu, as --pass=--model --pass=qwen3-next")
    ran.add_argument("--page", action="store_true", help="run nothing: make docs/bench.md from evidence/, and the plot where matplotlib is")
    shown = commands.add_parser("status", help="make the README's support matrix from evidence/ and the queue", description="Make the README's support matrix.")
    shown.set_defaults(run=_status)


def _command(commands, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    made.add_argument("revisions", nargs="*", metavar="REVISION", help="v0.5.9 or 0.5.9 (default: the default pin)")
    made.add_argument("--from", dest="origin", metavar="PATH", help="take the release from this wheel or folder of wheels")
    return made


def _chosen(options: argparse.Namespace) -> tuple[pinning.Pins, list[pinning.Pin]]:
    pins = pinning.load(options.root)
    return pins, [pins.find(name) for name in options.revisions] or [pins.default]


def _build(options: argparse.Namespace) -> int:
    for pin in _chosen(options)[1]:
        started = time.monotonic()
        made = build.build(options.root, pin, build.Target(options.python, options.machine), options.origin, options.root / "dist", _say)
        OUT.print(f"{made.path.relative_to(options.root)}: version {made.version}, {time.monotonic() - started:.1f} s\nfrom {made.origin}\nsha256 {made.sha256}")
        for what, names in (("added", made.added), ("changed", made.changed), ("removed", made.removed)):
            OUT.print(f"{len(names)} {what}")
            for name in names:
                OUT.print(f"  {name}")
    return 0


def _bundle(options: argparse.Namespace) -> int:
    pins, chosen = _chosen(options)
    description = options.host or options.root / host.DEFAULT
    for pin in chosen:
        made = bundle.pack(options.root, pins, pin, description, options.sm, round(options.part_size * MIB), options.origin, _say)
        sizes = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in made.sizes.items())
        OUT.print(f"{made.path.relative_to(options.root)}: {sizes}, {len(made.manifest['packages'])} packages, {len(made.manifest['parts'])} parts")
        OUT.print("on the host: ./unpack FOLDER && python3 FOLDER/tests/gpu/run.py --out RESULTS")
    return 0


def _gpu(options: argparse.Namespace) -> int:
    return _run(options, "run")


def _bench(options: argparse.Namespace) -> int:
    code = 0 if options.page else _run(options, "bench")
    drawn = benchpage.write(options.root)
    OUT.print(f"{benchpage.PAGE} written{f', {benchpage.PLOT} drawn' if drawn else '; no plot: matplotlib is not installed, or nothing was measured'}")
    return code


def _run(options: argparse.Namespace, script: str) -> int:
    pins, chosen = _chosen(options)
    files, codes = list(options.take or []), []
    for pin in [] if options.take else chosen:
        ran = gpurun.run(options.root, pin, script, options.here, options.site, options.origin, options.words, _say)
        codes.append(ran.code)
        files += [ran.result] if ran.result else []
    for file in files:
        taken = evidence.take(options.root, pins, file, _say, options.stale)
        kept = f", {taken.kept} kept from before" if taken.kept else ""
        OUT.print(f"{taken.path.relative_to(options.root)}: {taken.runs} runs{kept}; {'all passed' if taken.passed else 'not all passed'}")
    return max(codes, default=0)


def _status(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    changed = status.write(options.root, pins)
    rows = status.matrix(options.root, pins)
    OUT.print(status.markdown(rows), end="")
    OUT.print(f"{status.README} {'rewritten' if changed else 'said so already'}")
    return 0


def _say(text: str) -> None:
    ERR.print(text, style="dim")
