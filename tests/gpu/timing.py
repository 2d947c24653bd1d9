"""What one engine of a run of gain.py is asked, in order, and what is kept of its answers.

bench_engine.py and peer_engine.py say how each kind of engine does what is asked, and run in a
process of their own: `python bench_engine.py PLAN.json`. PLAN: shapes, rounds, loads (how many),
requests (of each), traffic (kinds), until (time.time() at which it ends), compiling (processes to
wait for), compiled_by (as until), scratch (a folder), out (what is kept, rewritten after each
step). The rest is the engine's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gputrace
import kernels
import launch
import traffic

# rounds before those that count; loads; calls of a shape in its profile
WARM_UP, LOADS, PROFILED = (3, 3, 3)
WARM_UP_S, ROUNDS_S = 240, 240  # seconds after which no round begins
TRAFFIC = 2  # loads of each kind that count
WARM_TRAFFIC = ("chat-16", "long", "turns", "decode-128")  # loads before those that count


class NoTime(Exception):
    """There was none left; its text says for what."""


class Failed(Exception):
    """Why the engine's figures say nothing."""


class Timed:
    """One engine, and what was found of it. A subclass has one kind of engine:

    start() -> seconds until it is ready, and until it has answered once more
    generate(prompts, answer): answer all with so many tokens, and return behind the last one
    send(prompts, in_flight): answer each with one token, at most `in_flight` under way
    traced(folder): a context; trace the GPU inside, and leave the trace in the folder
    traffic(kind, number) -> what became of a load of users; peers take none
    """

    PROFILED_ANSWER = 0  # tokens that are generated behind a profiled prefill

    def __init__(self, plan: dict):
        self.plan, self.until = plan, plan["until"]
        self.entry: dict[str, Any] = {}
        self.shapes: list[tuple[int, int]] = [(count, length) for count, length in plan["shapes"]]

    def forwards(self, since: float) -> int | None:
        """Prefills since then, as time.time() tells it; None where the engine does not say."""
        return None

    def measure(self) -> None:
        """Everything, in order. Raises NoTime or Failed."""
        self.entry |= self.start()
        start_s, first_s = self.entry["start_s"], self.entry["first_answer_s"]
        self._keep(f"started in {start_s} s, first answer after {first_s} s more")
        kernels.wait(self.plan["compiling"], min(self.until, self.plan["compiled_by"]))
        if self.plan["traffic"]:
            self._users()
            return
        self._rounds()
        self._loads()
        for shape in self.shapes:
            self._profile(*shape)
        rounds = self.plan["rounds"]
        if any(len(found["all"]) < rounds for found in self.entry["first_token_ms"].values()):
            raise NoTime(f"{rounds} rounds")

    def _users(self) -> None:
        """The loads of warm_kinds once, then each kind TRAFFIC times, kinds in turn."""
        kinds = self.plan["traffic"]
        for kind in warm_kinds(kinds):
            self._ask(f"traffic {kind}", self.traffic, kind, 0)
        for number in range(1, TRAFFIC + 1):
            for kind in kinds:
                found = self._ask(f"traffic {kind}", self.traffic, kind, number)
                self.entry.setdefault("traffic", {}).setdefault(kind, []).append(found)
                first = found["first_ms"]
                self._keep(
                    f"{kind}: {traffic.rate(found):.0f} tokens/s, first tokens, ms:"
                    f" p50 {first['p50']:.1f}, p99 {first['p99']:.1f}"
                )

    def _rounds(self) -> None:
        """First those that warm up, in order: what a server's first requests of a shape wait for,
        kernels that compile or are timed."""
        spans = self._ask("rounds", self.rounds, -WARM_UP, WARM_UP, WARM_UP_S)
        self.entry["warm_up_ms"] = spans
        firsts = ", ".join(f"{shape} {found[0]:.0f}" for shape, found in spans.items() if found)
        self._keep(f"{WARM_UP} rounds of warm-up; first calls, ms: {firsts}")
        # the rest is for loads and profiles
        seconds = min(ROUNDS_S, 0.6 * (self.until - time.time()))
        spans = self._ask("rounds", self.rounds, 0, self.plan["rounds"], seconds)
        found = {shape: spread(each) for shape, each in spans.items() if each}
        self.entry["first_token_ms"] = found
        said = ", ".join(f"{shape} {spoken(each)}" for shape, each in found.items())
        self._keep(f"first tokens, ms: {said}")

    def _loads(self) -> None:
        kept = self.entry.setdefault("loads", [])
        for number in range(self.plan["loads"]):
            found = self._ask("prefill_load", self.prefill_load, number, self.plan["requests"])
            kept.append({"round": number} | found)
        rates = ", ".join(f"{one['tokens_per_s']:.0f}" for one in kept)
        asked = f"{traffic.PREFILL_IN_FLIGHT} prompts of {traffic.PREFILL_PROMPT} in flight"
        self._keep(f"{asked}, tokens/s: {rates}")

    def _profile(self, count: int, length: int) -> None:
        """A trace of the GPU over some calls of one shape, and what it says of one."""
        shape = name((count, length))
        folder = Path(self.plan["scratch"]) / f"{Path(self.plan['out']).stem}.traces" / shape
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spans, forwards = self._ask("profile", self.profile, count, length, str(folder))
        events = _events(folder)
        found = gputrace.profile(events, PROFILED) | {"ms": spans}
        if forwards is not None:  # vLLM does not say
            found["forwards"] = round(forwards / PROFILED, 2)
        self.entry.setdefault("profile", {})[shape] = found
        self._keep(
            f"profile of {shape}: {found['busy_ms']:.1f} ms busy, "
            f"{found['launches']:.0f} launches, {found.get('forwards', '?')} forwards"
        )
        if not events:
            raise Failed(f"the profile of {shape} has no kernels")

    def rounds(self, first: int, count: int, seconds: float) -> dict[str, list[float]]:
        """Milliseconds of calls for one token, shapes in turn, round by round; no round begins
        after `seconds`. first: its number, which settles the tokens."""
        until = time.monotonic() + seconds
        spans: dict[str, list[float]] = {name(shape): [] for shape in self.shapes}
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            source = random.Random(f"round {number}")
            for shape in self.shapes:
                spans[name(shape)].append(self._call(source, *shape))
        return spans

    def profile(self, count: int, length: int, folder: str) -> tuple[list[float], int | None]:
        """Milliseconds of the traced calls, and how many prefills they took."""
        source, since = random.Random(f"profile {count} {length}"), time.time()
        with self.traced(folder):
            answer = self.PROFILED_ANSWER
            spans = [self._call(source, count, length, answer) for _ in range(PROFILED)]
        return spans, self.forwards(since)

    def prefill_load(self, number: int, requests: int) -> dict:
        """Input tokens per second of a prefill node's load. number: of the load, which settles its
        tokens."""
        prompts = traffic.prefills(number, requests)
        since, began = time.time(), time.perf_counter()
        self.send(prompts, traffic.PREFILL_IN_FLIGHT)
        span = time.perf_counter() - began
        rate, prefills = sum(map(len, prompts)) / span, self.forwards(since)
        return {"seconds": round(span, 3), "tokens_per_s": round(rate, 1), "prefills": prefills}

    def _call(self, source: random.Random, count: int, length: int, answer: int = 1) -> float:
        """Milliseconds of one whole call of an idle server, for `count` new prompts of `length`
        tokens."""
        prompts = [list(traffic.tokens(source, length)) for _ in range(count)]
        time.sleep(traffic.PAUSE_S)
        began = time.perf_counter()
        self.generate(prompts, answer)
        return round((time.perf_counter() - began) * 1e3, 2)

    def _ask(self, what: str, do: Callable[..., Any], *words: object) -> Any:
        if time.time() > self.until:
            raise NoTime(what)
        return do(*words)

    def _keep(self, text: str) -> None:
        """Write what was found so far, and say a line: the engine may be ended at any time."""
        print(f"{launch.MARK}{text}", flush=True)
        self.write(Path(f"{self.plan['out']}.part"))

    def write(self, file: Path) -> None:
        (new := file.with_suffix(".new")).write_text(json.dumps(self.entry))
        new.replace(file)


def run(kind: type[Timed]) -> None:
    """Do what the plan says. Then the process ends at once: an engine has nothing to save, and one
    that failed may wait forever for its own clean-up."""
    # It would keep its share of the GPU when gain.py is killed; its children follow it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    plan = json.loads(Path(sys.argv[1]).read_text())
    timed = kind(plan)
    try:
        timed.measure()
        timed.entry |= {"verdict": "passed", "why": ""}
    except NoTime as what:
        timed.entry |= {"verdict": "not run", "why": f"no time was left for {what}"}
    except Failed as why:
        timed.entry |= {"verdict": "failed", "why": str(why)}
    except Exception:
        traceback.print_exc()
        os._exit(1)
    timed.write(Path(plan["out"]))  # now it counts as answered
    os._exit(0)


def _events(folder: Path) -> list[gputrace.Event]:
    """What the trace of a folder holds, of several ranks the first one's; nothing where there is
    none."""
    files = sorted(folder.glob("*.json*"))
    return gputrace.read(files[0]) if files else []


def warm_kinds(kinds: Sequence[str]) -> Sequence[str]:
    """The loads before those that count: of the kinds asked for alone, so that few end soon."""
    return [kind for kind in WARM_TRAFFIC if kind in kinds] or kinds[:1]


def spread(spans: Sequence[float]) -> dict:
    """Fastest, first quartile and median of calls, and all of them."""
    return {
        "fastest": min(spans),
        "first_quartile": round(traffic.percentile(sorted(spans), 25), 2),
        "median": round(statistics.median(spans), 2),
        "all": [*spans],
    }


def name(shape: Sequence[int]) -> str:
    """A shape as words and results call it: 8x512."""
    return f"{shape[0]}x{shape[1]}"


def spoken(found: dict) -> str:
    return f"{found['fastest']:.1f} / {found['first_quartile']:.1f} / {found['median']:.1f}"
