#!/usr/bin/env python3
"""Time the untouched release and the patched one in one run: `python gain.py --out RESULTS`.

Each tree in turn has one engine with the whole GPU, and all have the same pools and dummy weights.
An engine answers rounds of first tokens, one call of every shape after the other. Then it takes a
prefill node's load, and its GPU is profiled for every shape. With --traffic it takes the loads of
users instead, with a prefix cache, and graphs of the release's default sizes. A --peer comes after
the trees and is measured as they are. Ends within --limit and writes what it has:
RESULTS/gain.json. Exit code 0: all was measured of the trees.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import engine as engines
import graphs
import judging
import kernels
import launch
import machine
import models
import modes
import peers
import subjects
import timing
import traffic
import untouched
from gain_table import show, states
from timing import name

RESULT = "gain.json"
STATES = "SGLANG_PREFILL_GRAPH_STATES"  # captured/ of the overlay
UNTOUCHED, PATCHED = "untouched", "patched"
SHAPES = ((1, 512), (8, 64), (1, 2048), (1, 4096), (8, 512))
KERNELS_S = 200  # until when the attention kernels that all engines load are waited for
RUNNING = re.compile(r"#running-req: (\d+)")  # of a release's line about a batch
# of an engine until it has answered
UNASKED = {"verdict": "not run", "why": "no time was left", "seconds": 0, "captured": []}
END_S = 15  # kept of --limit for ending the engine and writing


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    for number in (signal.SIGTERM, signal.SIGHUP):  # the engine is ended all the same
        signal.signal(number, lambda number, _: sys.exit(f"ended by {signal.Signals(number).name}"))
    gain = Gain(options)
    try:
        gain.measure()
    finally:
        gain.write()
    show(gain.facts)
    return 0 if gain.facts["passed"] else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = commandline.parser(__doc__)
    commandline.add_place(parser)
    commandline.add_trees(parser, "as in the other runs of the page")
    _add_engines(parser.add_argument)
    _add_questions(parser.add_argument)
    options = parser.parse_args(words)
    options.mode = _for_each(parser, "--mode", options.mode, options.trees)
    options.states = _for_each(parser, "--states", options.states, options.trees)
    if options.peer and options.traffic:
        parser.error("--peer: peers take shapes, not the loads of --traffic; leave one of them out")
    return options


def _add_engines(add: Callable) -> None:
    """Which engines are timed."""
    against = "the folder that holds the other sglang/ (default: made from --untouched)"
    add("--against", type=Path, metavar="TREE", help=against)
    subject = "the model to time (default nemotron)"
    add("--subject", choices=[*subjects.SUBJECTS], default="nemotron", help=subject)
    both = (UNTOUCHED, PATCHED)
    add("--trees", nargs="+", choices=both, default=both, help="in this order; one may come again")
    mode, known = "for all trees, or one for each (default breakable)", (*modes.GRAPHS, modes.EAGER)
    mode += "; a tree without that graph runs eagerly, and this is said"
    add("--mode", nargs="+", choices=known, default=[modes.BREAKABLE], help=mode)
    said, usual = ("all", "capture", "break"), [os.environ.get(STATES, "")]
    states = f"what {STATES} says, for all trees, or for each one: all, capture or break"
    states += " (default: what it says here)"
    add("--states", nargs="+", choices=said, default=usual, metavar="STATES", help=states)
    peer = "another engine beside the trees: vllm=FOLDER of its packages, or sglang=FOLDER, "
    peer += "another release's unpacked bundle, run as published (may be given again)"
    kind = {"type": peers.read, "metavar": "NAME=FOLDER"}
    add("--peer", action="append", default=[], help=peer, **kind)
    port = "the first engine's port; each next one's is 100 higher (default 24000)"
    add("--port", type=int, default=24000, help=port)


def _add_questions(add: Callable) -> None:
    """What they are asked."""
    shapes = f"requests x tokens (default: {' '.join(map(name, SHAPES))})"
    kind = {"type": _shape, "metavar": "NxTOKENS"}
    add("--shapes", nargs="+", default=SHAPES, help=shapes, **kind)
    add("--rounds", type=int, default=20, help="timed calls of each shape (default 20)")
    loads, known = f"loads of users in place of shapes: {', '.join(traffic.KINDS)}", traffic.KINDS
    add("--traffic", nargs="+", choices=known, default=[], metavar="KIND", help=loads)
    add("--limit", type=float, default=560, help="seconds in which all ends (default 560)")


def _for_each(
    parser: argparse.ArgumentParser, option: str, given: list[str], trees: Sequence[str]
) -> list[str]:
    """One value for each tree. Ends the run where there are neither one nor as many."""
    if len(given) not in (1, len(trees)):
        parser.error(f"{option}: one for all trees, or {len(trees)}, one for each")
    return given * (len(trees) // len(given))


def _shape(word: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", word)
    if not found:
        raise argparse.ArgumentTypeError(f"{word} is no shape: as 8x512")
    return int(found[1]), int(found[2])


class Gain:
    """One run: its engines one after the other, and the facts that are written."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.began = options, time.time()
        self.until = self.began + options.limit - END_S
        self.place = commandline.place_of(options)
        self.subject = subjects.SUBJECTS[options.subject]
        # a sparse model has attention of its own
        self.words = {"attention_backend": options.attention} | self._words()
        self.compiling: list[int] = []  # processes that compile attention kernels
        self.facts = self._facts() | {"runs": [], "peers": [], "passed": False}
        gpu, queue = self.facts["gpu"]["name"], machine.queue_of(self.facts)
        self.say(f"{self.facts['version']} ({queue}) on {gpu}: {self.subject.model}")

    def _words(self) -> dict:
        """sglang.Engine's words for every engine."""
        if not self.options.traffic:
            return subjects.alone(self.subject)
        # then the release chooses extra_buffer, where a model can: from 0.5.14 on
        tracked = "mamba_radix_cache_strategy" in commandline.fields(self.options)
        memory = machine.visible()[0].memory_mib / 1024
        return subjects.serving(self.subject, traffic.RUNNING, memory, tracked)

    def say(self, text: str) -> None:
        commandline.say(f"{time.time() - self.began:4.0f} s: {text}")

    def _facts(self) -> dict:
        settings = {
            "shapes": [name(shape) for shape in self.options.shapes],
            "rounds": self.options.rounds,
            "engine": self.words,
            "capture": self._sizes(),
            "traffic": [*self.options.traffic],
        }
        return machine.describe(self.place, self.options) | {
            "subject": self.options.subject,
            "model": self.subject.model,
            "config": self.subject.config,
            "gain": settings,
            "session": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cpus": len(os.sched_getaffinity(0)),
            **commandline.other_attention(self.options),
        }

    def _sizes(self) -> list[int]:
        """What graphs are captured for: each shape's tokens, and the load's pieces. Nothing: the
        release's own sizes."""
        if self.options.traffic:
            return []
        sizes = {count * length for count, length in self.options.shapes}
        return sorted(sizes | {traffic.PREFILL_PROMPT})

    def measure(self) -> None:
        """Everything, in order, written as it comes: an end from outside loses little."""
        own = self._own_tree() if UNTOUCHED in self.options.trees else None
        self._floor()
        folder = self.place.scratch / "models" / self.options.subject
        model = models.write_config(folder, self.subject.config)
        config = self.subject.config.get("text_config", self.subject.config)
        head_dim = config.get("head_dim") or kernels.HEAD_DIM
        device, attention = machine.visible()[0].use, self.options.attention
        # They take a minute on a fresh host, as the first engine's start does. Nothing is timed
        # before both are done.
        with kernels.made_ahead(self.place, device, attention, head_dim) as self.compiling:
            for number, tree in enumerate(self.options.trees):
                self._visit(number, *self._of_tree(number, tree, own, model))
            for number, peer in enumerate(self.options.peer, len(self.options.trees)):
                self._visit(number, *self._of_peer(number, peer, model))

    def _own_tree(self) -> Path:
        """The untouched tree. Ends the run where it cannot be made."""
        own: Path = self.options.against or commandline.make_untouched(self.place, self.options)
        found = self.facts["gain"]["untouched"] = untouched.tree_hash(own)
        self.say(f"untouched tree: {found[:20]}…")
        return own

    def _floor(self) -> None:
        """The rate of large matrix products on this GPU, and every shape's floor at it."""
        try:
            rate = self.place.ask(subjects.RATE)
        except (RuntimeError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            rate = {"tflops": None, "why": str(error)[-300:]}
        self.facts["rate"] = rate
        if rate["tflops"]:
            config, rates = self.subject.config, rate["tflops"] * self.words.get("tp_size", 1)
            self.facts["floor_ms"] = {
                name((c, n)): subjects.milliseconds(config, c, n, rates)
                for c, n in self.options.shapes
            }
        self.say(f"matrix products of bfloat16: {rate['tflops']} TFLOP/s")

    def _of_tree(
        self, number: int, tree: str, own: Path | None, model: Path
    ) -> tuple[dict, launch.Job]:
        """What is kept of one engine of a tree, and how it is run."""
        other = {"tree": own} if tree == UNTOUCHED else {}
        options = argparse.Namespace(**vars(self.options) | other)
        mode = self.options.mode[number]
        chosen, why = peers.mode_of(options, mode)
        entry = {
            "tree": tree,
            "visit": number + 1,
            "mode": chosen,
            "instead_of": mode if why else "",
            "mode_why": why,
            "states": self.options.states[number],
            "measure": f"gain {number + 1} {tree}",
        } | UNASKED
        self.facts["runs"].append(entry)
        more = {STATES: entry["states"]} if entry["states"] else {}
        label = f"{number + 1}.{tree}"
        plan = self._plan(number, label, model) | {"mode": chosen}
        return entry, peers.of_sglang(options, label, plan, **more)

    def _of_peer(
        self, number: int, peer: peers.Peer, model: Path
    ) -> tuple[dict, launch.Job | None]:
        """The same of a peer, which leaves the trees' part as it is, whatever becomes of it; None
        where it cannot be run."""
        entry = {"name": peer.name, "version": "", "mode": ""} | UNASKED
        self.facts["peers"].append(entry)
        label = f"{number + 1}.{peer.name}"
        try:
            job, told = peers.ready(peer, self.options, label, self._plan(number, label, model))
        except peers.Unfit as why:
            entry |= {"verdict": "failed", "why": str(why)}
            self.say(f"{label}: failed {why}")
            return entry, None
        entry |= told
        return entry, job

    def _plan(self, number: int, label: str, model: Path) -> dict:
        """What an engine is told, but for the mode and the time at which it ends."""
        return {
            "model": str(model),
            "port": self.options.port + 100 * number,
            "engine": self.words,
            "capture": self._sizes(),
            "enforce": self.subject.enforce,
            "breakable": not models.is_sparse(self.subject.config),
            "watch": str(self.place.out / f"{label}.watch"),
            "reasons": False,  # they take time
            "shapes": self.options.shapes,
            "rounds": self.options.rounds,
            "loads": timing.LOADS,
            "requests": traffic.PREFILL_REQUESTS,
            "traffic": self.options.traffic,
            "compiling": self.compiling,
            "compiled_by": self.began + KERNELS_S,
            "scratch": str(self.place.scratch),
            "out": str(self.place.out / f"bench.{label}.json"),
        }

    def _visit(self, number: int, entry: dict, job: launch.Job | None) -> None:
        """One engine: started, asked everything, ended."""
        if job is None:
            return
        because = f" because {entry['mode_why']}" if entry.get("mode_why") else ""
        mode = entry["mode"] or "mode unknown"
        self.say(f"{job.name}: starting, {mode}{because}{states(entry)}")
        part = share(number, len(self.options.trees), len(self.options.peer))
        until = job.plan["until"] = time.time() + (self.until - time.time()) * part
        (kept := Path(f"{job.plan['out']}.part")).unlink(missing_ok=True)
        try:
            launch.run_all(self.place, [job], 1, until, self.say, lead=False)
        finally:
            answered = Path(job.plan["out"])
            file = answered if answered.is_file() else kept
            entry |= json.loads(file.read_text()) if file.is_file() else {}
            self._close(entry, job)
        self.say(f"{job.name}: {entry['verdict']} {entry['why']}")

    def _close(self, entry: dict, job: launch.Job) -> None:
        """What became of an engine, and what its log and its watch say."""
        file = self.place.out / f"{job.name}.log"
        log = file.read_text(errors="replace") if file.is_file() else ""
        if job.code is None:
            entry |= {"verdict": "not run", "why": job.why}
        elif job.code:
            entry |= {"verdict": "failed", "why": f"{job.why}: {judging.error(log)}"}
        entry["seconds"] = round(job.seconds)
        entry["captured"] = [asdict(found) for found in judging.captures(log)]
        if self.options.traffic:
            entry["running"] = max(map(int, RUNNING.findall(log)), default=0)
        ran = engines.watched(job.plan["watch"])
        seen = counted(ran)
        if ran or "tree" in entry:
            entry["prefills"] = seen
        if "tree" in entry and entry["verdict"] == "passed" and not _as_meant(entry):
            why = f"{seen['on_graph']} of {len(ran)} prefills ran on a graph,"
            why += f" and {seen['too_long']} are longer than what was captured"
            entry |= {"verdict": "failed", "why": why}
        self.write()

    def write(self) -> None:
        self.facts["seconds"] = round(time.time() - self.began)
        verdicts = [entry["verdict"] for entry in self.facts["runs"]]
        self.facts["passed"] = verdicts == ["passed"] * len(self.options.trees)
        file = self.place.out / RESULT
        file.with_suffix(".part").write_text(json.dumps(self.facts, indent=1) + "\n")
        file.with_suffix(".part").replace(file)


def share(number: int, count: int, peers: int = 0) -> float:
    """The part of the time left that the next visit may take, of `count` trees and then `peers`.
    The first compiles what the others find: it has one and a half parts. A peer compiles all for
    itself, and has two."""
    parts = [1.0] * count + [2.0] * peers
    parts[0] = 1.5
    return parts[number] / sum(parts[number:])


def counted(ran: Sequence[dict]) -> dict:
    """How many prefills an engine's watch saw; how many were replayed; and how many have more
    tokens than the largest captured size, which prefill eagerly by design."""
    largest = max((max(line["captured"]) for line in ran if line.get("captured")), default=None)
    return {
        "prefills": len(ran),
        "on_graph": sum(map(graphs.on_graph, ran)),
        "too_long": sum(line["tokens"] > largest for line in ran) if largest else 0,
    }


def _as_meant(entry: dict) -> bool:
    """Whether prefills ran as their mode says. An untouched release may leave its graph aside."""
    ran = entry["prefills"]
    if entry["mode"] == modes.EAGER:
        return ran["prefills"] > 0 and not ran["on_graph"]
    fit = ran["prefills"] - ran["too_long"]
    return entry["tree"] == UNTOUCHED or ran["on_graph"] >= 0.95 * fit > 0


if __name__ == "__main__":
    raise SystemExit(main())
