#!/usr/bin/env python3
"""Time a patched release on this host's GPU, modes side by side: `python bench.py --out RESULTS`,
as run.py otherwise.

The model has a published shape and dummy weights (--subject). Every mode has an engine of its own
on the one GPU, and they take turns: loads round by round (A B C, C B A, ...), first tokens call by
call. So each round is a paired comparison, and what drifts hits all alike. Ends within --limit and
writes what it has: RESULTS/bench.json, and a log of every engine beside it. Exit code 0: every mode
was timed, on its graph.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import engine as engines
import judging
import launch
import load
import machine
import models
import modes
import steady
import subjects
import turns

HERE = Path(__file__).resolve().parent
LOAD, FIRST_TOKEN = subjects.LOAD, subjects.FIRST_TOKEN
WARM_UP = 3  # calls of each first-token shape before the timed ones
# longest waits for an engine; the first load on a host compiles kernels
START_S, PROMPT_S, LOAD_S, CALLS_S = (300, 120, 240, 60)
# hardware threads that an engine has for first tokens; calls until they were fast throughout
THREADS, TRIES = (4, 4)
END_S = 20  # kept of --limit for ending engines and writing
SPARE = 3  # GiB of the GPU that nobody is promised
# what a scheduler says it will do
RUNNING = re.compile(r"max_total_num_tokens=\d+, .*?max_running_requests=(\d+)")


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    for number in (signal.SIGTERM, signal.SIGHUP):  # engines are ended all the same
        signal.signal(number, lambda number, _: sys.exit(f"ended by {signal.Signals(number).name}"))
    bench = Bench(commandline.place_of(options), options)
    try:
        bench.measure()
    finally:
        turns.end(bench.engines)
        bench.write()
    show(bench.facts)
    return 0 if bench.facts["passed"] else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    parser.add_argument(
        "--subject",
        choices=[*subjects.SUBJECTS],
        default="nemotron",
        help="the model to time (default nemotron)",
    )
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=modes.ALL,
        help="default: those that are compared for the model",
    )
    parser.add_argument(
        "--only",
        choices=[LOAD, FIRST_TOKEN],
        help="measure this alone (default: what there is for the model)",
    )
    parser.add_argument(
        "--loads",
        type=int,
        default=6,
        help="rounds of the load (default 6, the fewest that give an interval)",
    )
    parser.add_argument(
        "--times", type=int, default=12, help="timed calls for each first-token shape (default 12)"
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=[f"{count}x{length}" for count, length in load.FIRST_TOKEN],
        help="first-token shapes, requests x tokens (default: all)",
    )
    parser.add_argument(
        "--running",
        type=int,
        help=(
            "requests that an engine runs at once (default: as many as fit on the GPU, at most"
            " those in flight)"
        ),
    )
    parser.add_argument(
        "--limit", type=float, default=560, help="seconds in which all ends (default 560)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=23000,
        help="the first engine's port; each next one's is 1200 higher (default 23000)",
    )
    parser.add_argument(
        "--beside", default="", help="what else the host's other GPUs do meanwhile, for the record"
    )
    options = parser.parse_args(words)
    options.mode = options.mode or [*subjects.SUBJECTS[options.subject].modes]
    return options


def fitting(subject: subjects.Subject, memory_mib: int, count: int) -> int:
    """How many requests each of `count` engines can run at once in that much memory. Raises
    SystemExit where none can."""
    each = ((memory_mib / 1024 - SPARE) / count - subject.weights - subject.rest) / subject.request
    if each < 1:
        sys.exit(
            f"{count} engines of {subject.model} do not fit in {memory_mib} MiB: choose fewer with"
            " --mode"
        )
    return min(load.IN_FLIGHT, int(each) // 4 * 4 or int(each))


class Bench:
    """One run: its engines, what they measured so far (by mode), and the facts that are written."""

    def __init__(self, place: launch.Place, options: argparse.Namespace):
        self.place, self.options = place, options
        self.began = time.time()
        self.until = self.began + options.limit - END_S
        self.subject = subjects.SUBJECTS[options.subject]
        self.measures = [options.only] if options.only else [*self.subject.measures]
        self.shapes = [
            (count, length)
            for count, length in self.subject.shapes
            if not options.shapes or f"{count}x{length}" in options.shapes
        ]
        self.gpu = turns.Gpu.here()
        self.threads = steady.Threads()
        self.engines: list[turns.Engine] = []
        self.found: dict[str, dict] = {mode: {} for mode in options.mode}
        facts = machine.describe(place, options) | {
            "subject": options.subject,
            "model": self.subject.model,
            "config": self.subject.config,
        }
        for name in ("capture", "chunk", "tolerance"):
            facts.pop(name)
        self.running = options.running or fitting(
            self.subject, facts["gpu"]["memory_mib"] - self.gpu.used_mib(), len(options.mode)
        )
        session = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.facts = facts | {
            "load": self._load(),
            "session": session,
            "idle": turns.IDLE,
            "beside": options.beside,
            "cpus": len(os.sched_getaffinity(0)),
        }
        commandline.say(
            f"{facts['version']} ({machine.queue_of(facts)}) on {facts['gpu']['name']}, torch"
            f" {facts['torch']['version']}: {' '.join(options.mode)}"
        )
        commandline.say(f"{self.running} requests at once in each, {options.limit:.0f} s at most")

    def _load(self) -> dict:
        wanted = load.requests()
        return {
            "requests": len(wanted),
            "in_flight": load.IN_FLIGHT,
            "running": self.running,
            "shared_prefix": load.SHOTS,
            "mean_prompt": round(statistics.mean(len(one.prompt) for one in wanted)),
            "mean_answer": round(statistics.mean(one.answer for one in wanted), 1),
            "prefix_cache": True,
            "capture": list(load.CAPTURE),
            "chunk": load.CHUNK,
            "loads": self.options.loads,
            "times": self.options.times,
        }

    def measure(self) -> None:
        """Everything, in order; what is measured is written as it comes, so that an end from
        outside loses little."""
        model = models.write_config(
            self.place.scratch / "models" / self.options.subject, self.subject.config
        )
        for number, mode in enumerate(self.options.mode):
            self.engines.append(self._begin(model, number, mode))
        self._start()
        if LOAD in self.measures:
            self._warm_up()
            self._loads()
        if FIRST_TOKEN in self.measures:
            self._first_tokens()

    def _begin(self, model: Path, number: int, mode: str) -> turns.Engine:
        plan = {
            "model": str(model),
            "mode": mode,
            "port": self.options.port + 1200 * number,
            "engine": self.subject.words(self.running),
            "enforce": self.subject.enforce,
            "breakable": not models.is_sparse(self.subject.config),
            "watch": self._watch(mode),
        }
        return turns.begin(
            self.place,
            mode,
            HERE / "bench_engine.py",
            plan,
            PREFILL_WATCH=plan["watch"],
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
        )

    def _watch(self, mode: str) -> str:
        return str(self.place.out / f"bench.{mode}.watch")

    def _ask(self, engine: turns.Engine, do: str, limit_s: float, **words: object) -> dict | None:
        """The engine's answer; None where it is gone, which is said."""
        try:
            return engine.ask(do, min(time.time() + limit_s, self.until), **words)
        except turns.Gone as gone:
            commandline.say(f"{engine.mode}: {gone}")
            return None

    def _start(self) -> None:
        """One after the other: the first compiles what the others find on disk, and what each takes
        of the GPU is seen."""
        for engine in turns.order(self.engines, 0):
            commandline.say(f"{engine.mode}: starting")
            before = self.gpu.used_mib()
            if answer := self._ask(engine, "start", START_S):
                self.found[engine.mode] |= answer | {
                    "memory_mib": {"started": self._memory(engine, self.gpu.used_mib() - before)}
                }
                commandline.say(
                    f"{engine.mode}: started in {answer['start_s']} s,"
                    f" {self.found[engine.mode]['memory_mib']['started'] / 1024:.1f} GiB in use"
                )

    def _memory(self, engine: turns.Engine, difference: int) -> int:
        """What the engine has of the GPU: its processes' own figures where they can be told, else
        the difference seen."""
        return self.gpu.session_mib(engine.process.pid) or difference

    def _warm_up(self) -> None:
        """The load once, not counted: kernels are compiled and tuned for shapes as they come."""
        for engine in turns.order(self.engines, 0):
            commandline.say(f"{engine.mode}: warm-up load")
            before = self.gpu.used_mib()
            if not self._ask(engine, "first_token", PROMPT_S, count=1, length=64, calls=1, seed=0):
                # an engine that does not answer one prompt is not worth a whole load's wait
                continue
            if answer := self._ask(engine, "load", LOAD_S):
                mine = self.found[engine.mode]
                mine["warm_up"] = {"seconds": answer["seconds"]}
                mine["memory_mib"]["after_load"] = self._memory(
                    engine, mine["memory_mib"]["started"] + self.gpu.used_mib() - before
                )
                commandline.say(
                    f"{engine.mode}: warm-up load took {answer['seconds']} s,"
                    f" {mine['memory_mib']['after_load'] / 1024:.1f} GiB in use"
                )

    def _first_tokens(self) -> None:
        """Each turn makes two calls and times the second: the first wakes an engine that was idle.
        A turn counts where every mode's call ran on hardware threads that were fast before and
        after it."""
        for count, length in self.shapes:
            shape, spans = f"{count}x{length}", {mode: {} for mode in self.found}
            for number in range(-1, self.options.times):
                for engine in turns.order(self.engines, number + 1):
                    if time.time() > self.until - CALLS_S / 10:
                        return commandline.say(f"first token of {shape}: no time was left")
                    words = dict(
                        count=count, length=length, calls=WARM_UP if number < 0 else 2, seed=number
                    )
                    span = self._first_token(engine, words)
                    if span and number >= 0:
                        spans[engine.mode][number] = span
            living = [engine.mode for engine in self.engines if engine.alive]
            whole = [
                number
                for number in range(self.options.times)
                if all(number in spans[mode] for mode in living)
            ]
            for mode, timed in spans.items():
                if kept := [timed[number] for number in whole if number in timed]:
                    lost = self.options.times - len(kept)
                    self.found[mode].setdefault("first_token_ms", {})[shape] = {
                        "median": round(statistics.median(kept), 2),
                        "all": kept,
                        "lost": lost,
                    }
            medians = {
                mode: found["first_token_ms"][shape]["median"]
                for mode, found in self.found.items()
                if shape in found.get("first_token_ms", {})
            }
            commandline.say(
                f"first token of {shape}, ms: "
                + ", ".join(f"{mode} {median:.1f}" for mode, median in medians.items())
                + f" ({len(whole)} of {self.options.times} turns)"
            )
            self.write()

    def _first_token(self, engine: turns.Engine, words: dict) -> float | None:
        """Milliseconds of the last of the calls, on threads that were fast throughout; None where
        TRIES did not have such ones."""
        for _ in range(TRIES):
            threads = self.threads.fast(THREADS)
            steady.pin(launch.members(engine.process.pid), threads)
            answer = self._ask(engine, "first_token", CALLS_S, **words)
            if answer is None:
                return None
            if self.threads.still_fast(threads):
                return answer["ms"][-1]
        return None

    def _loads(self) -> None:
        spans = [mine["warm_up"]["seconds"] for mine in self.found.values() if "warm_up" in mine]
        expected = 1.5 * min(spans, default=0) * len(spans)
        for number in range(self.options.loads):
            if time.time() + expected > self.until:
                return commandline.say(
                    f"{number} of {self.options.loads} rounds: no time was left for another"
                )
            began = time.time()
            for engine in turns.order(self.engines, number):
                if answer := self._ask(engine, "load", LOAD_S):
                    self.found[engine.mode].setdefault("loads", []).append(
                        {"round": number} | answer
                    )
                    commandline.say(
                        f"{engine.mode}: round {number + 1} of {self.options.loads}:"
                        f" {answer['tokens_per_s']} tokens/s, mean latency"
                        f" {answer['mean_latency_s']} s"
                    )
            expected = 1.1 * (time.time() - began)
            self.write()

    def write(self) -> None:
        self.facts["runs"] = [self._run(engine) for engine in self.engines]
        self.facts["seconds"] = round(time.time() - self.began)
        self.facts["passed"] = bool(self.engines) and all(
            one["verdict"] in ("passed", "not applicable") for one in self.facts["runs"]
        )
        file = self.place.out / "bench.json"
        file.with_suffix(".part").write_text(json.dumps(self.facts, indent=1) + "\n")
        file.with_suffix(".part").replace(file)

    def _run(self, engine: turns.Engine) -> dict:
        """What one mode's engine measured, and whether that is all that was asked for."""
        log, ran = engine.log.read_text(errors="replace"), engines.watched(self._watch(engine.mode))
        prefills = {
            "prefills": len(ran),
            "on_graph": sum(bool(line["runner"] and line["launches"]) for line in ran),
        }
        running = RUNNING.search(log)
        verdict, why = self._verdict(engine, log, prefills)
        return {
            "mode": engine.mode,
            "measure": " ".join(self.measures),
            "session": self.facts["session"],
            "seconds": round(time.time() - engine.began),
            "verdict": verdict,
            "why": why,
            "captured": [asdict(found) for found in judging.captures(log)],
            "running": int(running[1]) if running else None,
            **self.found[engine.mode],
            "prefills": prefills,
        }

    def _verdict(self, engine: turns.Engine, log: str, prefills: dict) -> tuple[str, str]:
        if not engine.alive:
            reason = re.search(r"(?m)^not applicable: (.*)$", log)
            return (
                ("not applicable", reason[1])
                if reason
                else ("failed", f"{engine.why}: {judging.error(log)}")
            )
        measured = {"loads": LOAD in self.measures, "first_token_ms": FIRST_TOKEN in self.measures}
        if lacking := [
            name
            for name, asked in measured.items()
            if asked and name not in self.found[engine.mode]
        ]:
            return "not run", f"no time was left for {' and '.join(lacking)}"
        wanted = prefills["prefills"] if engine.mode in modes.GRAPHS else 0
        if engine.mode in modes.GRAPHS and not wanted:
            return "failed", "the watch saw no prefill"
        good = prefills["on_graph"] >= 0.95 * wanted if wanted else not prefills["on_graph"]
        return (
            ("passed", "")
            if good
            else (
                "failed",
                f"{prefills['on_graph']} of {prefills['prefills']} prefills ran on a graph",
            )
        )


def show(facts: dict) -> None:
    for entry in facts["runs"]:
        print(
            f"\n{entry['mode']}: {entry['verdict']}{' - ' + entry['why'] if entry['why'] else ''}"
            f" (start {entry.get('start_s', '?')} s)"
        )
        for found in entry["captured"]:
            print(f"  {found['what']}: {found['seconds']} s, {found['gb']} GB")
        if "loads" in entry:
            print(
                "  tokens/s: " + ", ".join(f"{one['tokens_per_s']:.0f}" for one in entry["loads"])
            )
        if "first_token_ms" in entry:
            print(
                "  first token, ms: "
                + ", ".join(
                    f"{shape} {found['median']}" for shape, found in entry["first_token_ms"].items()
                )
            )
        print(
            f"  memory {entry.get('memory_mib')} MiB, prefills {entry['prefills']},"
            f" {entry['running']} requests at once"
        )
    print(f"\n{facts['tag']} on {facts['gpu']['name']}: {facts['seconds']} s")


if __name__ == "__main__":
    raise SystemExit(main())
