"""An engine that does what gain.py asks, whoever made it: one line of JSON over a socket asks, one
answers. turns.py is the other end."""

from __future__ import annotations

import contextlib
import ctypes
import json
import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import load

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Served:
    """What may be asked for; each answer is a JSON object. A subclass has one kind of engine."""

    PROFILED_ANSWER = 0  # tokens that are generated behind a profiled prefill

    def __init__(self, plan: dict):
        self.plan = plan

    def start(self) -> dict:
        """Seconds until it is ready, and until it has answered once more."""
        raise NotImplementedError

    def generate(self, prompts: list[list[int]], answer: int) -> None:
        """Answer all prompts with so many tokens, and return behind the last one."""
        raise NotImplementedError

    def send(self, prompts: Sequence[list[int]], in_flight: int) -> None:
        """Answer each with one token, at most `in_flight` under way."""
        raise NotImplementedError

    def traced(self, folder: str) -> contextlib.AbstractContextManager:
        """Trace the GPU inside, and leave the trace in the folder."""
        raise NotImplementedError

    def forwards(self, since: float) -> int | None:
        """Prefills since then, as time.time() tells it; None where the engine does not say."""
        return None

    def rounds(self, shapes: list[tuple[int, int]], first: int, count: int, seconds: float) -> dict:
        """Milliseconds of such calls for one token, shapes in turn, round by round; no round begins
        after `seconds`. first: its number, which settles the tokens."""
        until = time.monotonic() + seconds
        spans: dict[str, list[float]] = {f"{number}x{length}": [] for number, length in shapes}
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            source = random.Random(f"round {number}")
            for requests, length in shapes:
                spans[f"{requests}x{length}"].append(self._call(source, requests, length))
        return {"ms": spans}

    def profile(self, count: int, length: int, calls: int, folder: str) -> dict:
        """A trace of the GPU over some calls of one shape."""
        source, since = random.Random(f"profile {count} {length}"), time.time()
        with self.traced(folder):
            spans = [self._call(source, count, length, self.PROFILED_ANSWER) for _ in range(calls)]
        return {"ms": spans, "forwards": self.forwards(since)}

    def prefill_load(self, number: int, requests: int) -> dict:
        """Input tokens per second of a prefill node's load. number: of the load, which settles its
        tokens."""
        wanted = [list(one.prompt) for one in load.prefills(number, requests)]
        since, began = time.time(), time.perf_counter()
        self.send(wanted, load.PREFILL_IN_FLIGHT)
        span = time.perf_counter() - began
        rate = sum(map(len, wanted)) / span
        return {
            "seconds": round(span, 3),
            "tokens_per_s": round(rate, 1),
            "prefills": self.forwards(since),
        }

    def _call(self, source: random.Random, count: int, length: int, answer: int = 1) -> float:
        """Milliseconds of one whole call of an idle server, for `count` new prompts of `length`
        tokens."""
        prompts = [list(load.tokens(source, length)) for _ in range(count)]
        time.sleep(load.PAUSE_S)
        began = time.perf_counter()
        self.generate(prompts, answer)
        return round((time.perf_counter() - began) * 1e3, 2)


def serve(kind: type[Served]) -> None:
    """Do what is asked until the other end is gone."""
    # An engine would keep its share of the GPU when gain.py is killed; its children follow it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    plan = json.loads(Path(sys.argv[1]).read_text())
    line = socket.socket(fileno=plan["fd"])
    # its end must be seen when this process ends, whatever is left behind
    line.set_inheritable(False)
    served = kind(plan)
    with line.makefile("rw") as talk:
        for request in talk:
            words = json.loads(request)
            talk.write(json.dumps(getattr(served, words.pop("do"))(**words)) + "\n")
            talk.flush()
