#!/usr/bin/env python3
"""Prove several releases on this host, one after another: `python releases.py SITES --out RESULTS`.

SITES are unpacked bundles, or a folder that holds them. Each one's own run.py runs in the order
given, with what is left of --limit, into RESULTS/TAG; --at-once lets several run side by side.
Whatever ends this early leaves the results of the releases before. RESULTS/results.tar.gz holds
evidence and logs, and is all that has to be brought back: it is written anew behind each release.
Exit code 0: all of them passed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import judging
import launch
from proof import RESULT

PACKED = "results.tar.gz"
NIGHT_S = 8 * 3600
END_S = 180  # what a run may take to end behind its limit
LEAST_S = 120  # less is not worth starting: two engines take that
FIRST_PORT, PORTS = 21000, 1000  # run.py's own first one; those of one release's engines
NOT_STARTED = "not started"


@dataclass(frozen=True)
class Proof:
    """What became of one release. verdict: passed, failed, not started, or ended, where run.py left
    no evidence. engines: how many of its engines came to each verdict."""

    tag: str
    verdict: str
    seconds: float
    engines: dict[str, int]


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    # run.py is ended with this, and what was found is packed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    bundles, began = list(_bundles(options.sites)), time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Proof] = {}
    try:
        for proof in prove_all(bundles, options, began + options.limit):
            found[proof.tag] = proof
            if proof.verdict != NOT_STARTED:
                pack(options.out)
                commandline.say(_told(proof))
    finally:  # also what was ended
        pack(options.out)
    proofs = [found[bundle.name] for bundle in bundles]
    print(table(proofs, time.time() - began))
    return 0 if all(proof.verdict == judging.GOOD[0] for proof in proofs) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sites",
        nargs="+",
        type=Path,
        metavar="SITES",
        help="unpacked bundles, or folders of them (those in the order of their names)",
    )
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument(
        "--limit",
        type=float,
        default=NIGHT_S,
        help=f"seconds in which all ends (default {NIGHT_S}, a night)",
    )
    parser.add_argument(
        "--at-once",
        type=commandline.count,
        default=1,
        metavar="N",
        help="releases that run side by side, each with its own --width (default 1)",
    )
    parser.add_argument(
        "--pass",
        action="append",
        default=[],
        dest="words",
        metavar="WORD",
        help="a word for each run.py, as --pass=--width --pass=10",
    )
    return parser.parse_args(words)


def _bundles(sites: Sequence[Path]) -> Iterator[Path]:
    """The unpacked bundles among the folders, or in them. Ends the run where one has none."""
    for site in sites:
        inner = sorted(site.iterdir()) if site.is_dir() else []
        found = [folder.absolute() for folder in (site, *inner) if _is_bundle(folder)]
        if not found:
            sys.exit(
                f"{site}: no unpacked bundle is or lies there: `./unpack {site}/TAG` makes one"
            )
        yield from found


def _is_bundle(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("manifest.json", "tests/gpu/run.py"))


def prove_all(
    bundles: Sequence[Path], options: argparse.Namespace, until: float
) -> Iterator[Proof]:
    """Each release's proof, as it comes. Those that run are ended where the caller stops asking."""
    ending, slots = threading.Event(), queue.SimpleQueue()
    for slot in range(options.at_once):
        slots.put(slot)

    def one(bundle: Path) -> Proof:
        slot = slots.get()
        try:
            left = until - time.time() - END_S
            if ending.is_set() or left < LEAST_S:
                return Proof(bundle.name, NOT_STARTED, 0.0, {})
            commandline.say(f"{bundle.name}: starting, {left:.0f} s are left")
            ports = ("--port-base", str(FIRST_PORT + PORTS * slot))
            out = options.out / bundle.name
            return prove(bundle, out, left, [*ports, *options.words], ending)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(options.at_once) as pool:
        futures = [pool.submit(one, bundle) for bundle in bundles]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            ending.set()


def prove(
    bundle: Path, out: Path, limit_s: float, words: Sequence[str], ending: threading.Event
) -> Proof:
    """One release's own run.py, in a session of its own: it is ended with all its engines where it
    hangs, and once `ending` is set."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULT).unlink(missing_ok=True)
    began, script = time.time(), bundle / "tests/gpu/run.py"
    command = [sys.executable, str(script), "--out", str(out), "--limit", f"{limit_s:.0f}", *words]
    with (out / "run.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None and time.time() < began + limit_s + END_S:
                if ending.wait(0.2):
                    break
        finally:
            _end(process)
    return _proof(bundle.name, out, time.time() - began)


def _end(process: subprocess.Popen) -> None:
    """Let run.py end its engines, which are sessions of their own, before it is killed."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(launch.GRACE_S)
    launch.kill(process)


def _proof(tag: str, out: Path, seconds: float) -> Proof:
    if not (out / RESULT).is_file():
        return Proof(tag, "ended", seconds, {})
    facts = json.loads((out / RESULT).read_text(encoding="utf-8"))
    verdicts = [one["verdict"] for one in facts["runs"]]
    engines = {name: verdicts.count(name) for name in dict.fromkeys(verdicts)}
    return Proof(tag, judging.GOOD[0] if facts["passed"] else "failed", seconds, engines)


def pack(out: Path) -> None:
    """Evidence and logs of all releases, in one file that replaces the last one whole."""
    part = out / f"{PACKED}.part"
    with tarfile.open(part, "w:gz") as archive:
        for file in sorted([*out.glob(f"*/{RESULT}"), *out.glob("*/*.log")]):
            archive.add(file, file.relative_to(out))
    part.replace(out / PACKED)


def _told(one: Proof) -> str:
    engines = ", ".join(f"{count} {name}" for name, count in one.engines.items())
    return f"{one.tag}: {one.verdict} after {one.seconds / 60:.1f} min ({engines or 'none'})"


def table(proofs: Sequence[Proof], took_s: float) -> str:
    """Verdicts and minutes of each release, and how many a night takes at that rate. took_s: all of
    them together."""
    rows = [f"{'release':<16}{'verdict':<14}{'minutes':>7}  engines"]
    for proof in proofs:
        engines = ", ".join(f"{count} {name}" for name, count in proof.engines.items())
        rows.append(f"{proof.tag:<16}{proof.verdict:<14}{proof.seconds / 60:>7.1f}  {engines}")
    done = sum(bool(proof.engines) for proof in proofs)
    if done:
        mean = took_s / done
        rows.append(
            f"\na release takes {mean / 60:.1f} min, a night of 8 hours {NIGHT_S / mean:.0f}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
