"""One engine of a run of gain.py: what it is asked, in order, and what is kept of its answers."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gputrace
import load
import traffic
import turns

# rounds before those that count; loads; calls of a shape in its profile
WARM_UP, LOADS, PROFILED = (3, 3, 3)
START_S, WARM_UP_S, ROUNDS_S, LOAD_S, PROFILE_S = 300, 240, 240, 120, 60  # longest waits
TRAFFIC, TRAFFIC_S = 2, 120  # loads of each kind that count; longest wait for one
WARM_TRAFFIC = ("chat-16", "long", "turns", "decode-128")  # loads before those that count


@dataclass(frozen=True)
class Run:
    """What a visit has of its run. shapes, rounds, traffic: what is asked; scratch: a folder;
    compiled(until): waits for the attention kernels; say: a line; write: what was found so far."""

    shapes: Sequence[tuple[int, int]]
    rounds: int
    traffic: Sequence[str]
    scratch: Path
    compiled: Callable[[float], None]
    say: Callable[[str], None]
    write: Callable[[], None]


class NoTime(Exception):
    """There was none left; its text says for what."""


class Visit:
    """What one engine is asked, in order. Raises turns.Gone where it dies, NoTime without time."""

    def __init__(self, run: Run, engine: turns.Engine, entry: dict, until: float):
        self.run, self.engine, self.entry, self.until = run, engine, entry, until
        self.shapes = run.shapes

    def measure(self) -> None:
        self.entry |= self._ask("start", START_S)
        self._say(
            f"started in {self.entry['start_s']} s, "
            f"first answer after {self.entry['first_answer_s']} s more"
        )
        self.run.compiled(self.until)
        if self.run.traffic:
            self._traffic(self.run.traffic)
            return
        words = dict(shapes=self.shapes, first=-WARM_UP, count=WARM_UP, seconds=WARM_UP_S)
        spans = self._ask("rounds", WARM_UP_S, **words)["ms"]
        # In order: what a server's first requests of a shape wait for, kernels that compile or are
        # timed.
        self.entry["warm_up_ms"] = spans
        firsts = ", ".join(f"{shape} {found[0]:.0f}" for shape, found in spans.items() if found)
        self._say(f"{WARM_UP} rounds of warm-up; first calls, ms: {firsts}")
        self._rounds()
        self._loads()
        for shape in self.shapes:
            self._profile(*shape)
        if any(
            len(found["all"]) < self.run.rounds for found in self.entry["first_token_ms"].values()
        ):
            raise NoTime(f"{self.run.rounds} rounds")

    def _traffic(self, kinds: Sequence[str]) -> None:
        """Those of warm_kinds once, then each kind TRAFFIC times, kinds in turn."""
        for kind in warm_kinds(kinds):
            self._ask("traffic", TRAFFIC_S, kind=kind, number=0)
        for number in range(1, TRAFFIC + 1):
            for kind in kinds:
                found = self._ask("traffic", TRAFFIC_S, kind=kind, number=number)
                self.entry.setdefault("traffic", {}).setdefault(kind, []).append(found)
                self._say(
                    f"{kind}: {traffic.rate(found):.0f} tokens/s, first tokens, ms:"
                    f" p50 {found['first_ms']['p50']:.1f}, p99 {found['first_ms']['p99']:.1f}"
                )
            self.run.write()

    def _rounds(self) -> None:
        # the rest is for loads and profiles
        seconds = min(ROUNDS_S, 0.6 * (self.until - time.time()))
        words = dict(shapes=self.shapes, first=0, count=self.run.rounds, seconds=seconds)
        spans = self._ask("rounds", ROUNDS_S + PROFILE_S, **words)["ms"]
        self.entry["first_token_ms"] = {
            shape: spread(found) for shape, found in spans.items() if found
        }
        self._say(
            "first tokens, ms: "
            + ", ".join(
                f"{shape} {spoken(found)}" for shape, found in self.entry["first_token_ms"].items()
            )
        )
        self.run.write()

    def _loads(self) -> None:
        for number in range(LOADS):
            words = dict(number=number, requests=load.PREFILL_REQUESTS)
            found = {"round": number} | self._ask("prefill_load", LOAD_S, **words)
            self.entry.setdefault("loads", []).append(found)
        rates = ", ".join(f"{one['tokens_per_s']:.0f}" for one in self.entry["loads"])
        asked = f"{load.PREFILL_IN_FLIGHT} prompts of {load.PREFILL_PROMPT} in flight"
        self._say(f"{asked}, tokens/s: {rates}")
        self.run.write()

    def _profile(self, count: int, length: int) -> None:
        shape = name((count, length))
        folder = self.run.scratch / f"{self.engine.log.stem}.traces" / shape
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = dict(count=count, length=length, calls=PROFILED, folder=str(folder))
        answer = self._ask("profile", PROFILE_S, **words)
        events = _events(folder)
        found = gputrace.profile(events, PROFILED) | {"ms": answer["ms"]}
        if answer["forwards"] is not None:  # vLLM does not say
            found["forwards"] = round(answer["forwards"] / PROFILED, 2)
        self.entry.setdefault("profile", {})[shape] = found
        self._say(
            f"profile of {shape}: {found['busy_ms']:.1f} ms busy, "
            f"{found['launches']:.0f} launches, {found.get('forwards', '?')} forwards"
        )
        self.run.write()
        if not events:
            raise turns.Gone(f"the profile of {shape} has no kernels")

    def _ask(self, do: str, limit_s: float, **words: object) -> dict:
        if time.time() > self.until:
            raise NoTime(do)
        try:
            return self.engine.ask(do, min(time.time() + limit_s, self.until), **words)
        except turns.Gone as gone:
            if time.time() >= self.until:
                raise NoTime(do) from None
            raise gone

    def _say(self, text: str) -> None:
        self.run.say(f"{self.engine.name}: {text}")


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
        "first_quartile": round(load.percentile(sorted(spans), 25), 2),
        "median": round(statistics.median(spans), 2),
        "all": [*spans],
    }


def name(shape: Sequence[int]) -> str:
    """A shape as words and results call it: 8x512."""
    return f"{shape[0]}x{shape[1]}"


def spoken(found: dict) -> str:
    return f"{found['fastest']:.1f} / {found['first_quartile']:.1f} / {found['median']:.1f}"
