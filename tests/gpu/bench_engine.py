"""One engine in one mode that does what gain.py asks: `python bench_engine.py
PLAN.json`, started by turns.begin.

PLAN: model (folder), mode, port, engine (sglang.Engine's words), watch, fd (the socket to who
asks), capture (tokens that graphs are captured for). Idle until asked.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import random
import signal
import socket
import sys
import time
from pathlib import Path

import engine as engines
import load
import traffic

AGAIN = "-again"  # behind the watch's name: the file of watch/sitecustomize.py's times_again

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    # A stopped process does not see that gain.py is gone, and would keep its share of the GPU. Its
    # children follow by their own.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    plan = json.loads(Path(sys.argv[1]).read_text())
    line = socket.socket(fileno=plan["fd"])
    # its end must be seen when this process ends, whatever is left behind
    line.set_inheritable(False)
    import sglang  # noqa: F401  while others start

    served = Served(plan)
    with line.makefile("rw") as talk:
        for request in talk:
            words = json.loads(request)
            talk.write(json.dumps(getattr(served, words.pop("do"))(**words)) + "\n")
            talk.flush()


class Served:
    """What may be asked for; each answer is a JSON object."""

    def __init__(self, plan: dict):
        self.plan = plan
        self.engine = None

    def start(self) -> dict:
        self.engine, result = engines.start(self.plan)
        # Up to 0.5.9 nobody reads the answer to a flush before something was generated
        # (managers/tokenizer_communicator_mixin.py:346).
        began = time.monotonic()
        self.engine.generate(
            input_ids=[[load.SMALLEST]],
            sampling_params={"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
        )
        return result | {"first_answer_s": round(time.monotonic() - began, 1)}

    def rounds(self, shapes: list[tuple[int, int]], first: int, count: int, seconds: float) -> dict:
        """Milliseconds of such calls, shapes in turn, round by round; no round begins after
        `seconds`. first: its number."""
        until, spans = (
            time.monotonic() + seconds,
            {f"{requests}x{length}": [] for requests, length in shapes},
        )
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            source = random.Random(f"round {number}")
            for requests, length in shapes:
                spans[f"{requests}x{length}"].append(self._call(source, requests, length))
        return {"ms": spans}

    def profile(self, count: int, length: int, calls: int, folder: str) -> dict:
        """A trace of the GPU over calls that generate nothing: so no step behind the prefill is in
        it."""
        source, since = random.Random(f"profile {count} {length}"), time.time()
        self.engine.start_profile(
            output_dir=folder, activities=["GPU"], with_stack=False, record_shapes=False
        )
        spans = [self._call(source, count, length, answer=0) for _ in range(calls)]
        self.engine.stop_profile()
        return {"ms": spans, "forwards": len(self._ran(since))}

    def again(self, count: int, length: int, times: int) -> dict:
        """Milliseconds of a prefill that follows itself `times` times, without the scheduler in
        between. forwards: how many it took; their milliseconds are added up."""
        file, since = Path(self.plan["watch"] + AGAIN), time.time()
        file.write_text(str(times))
        try:
            self._call(random.Random(f"again {count} {length}"), count, length, answer=0)
        finally:
            file.unlink()
        found = [line["again_ms"] for line in self._ran(since)]
        return {"ms": round(sum(found), 3), "forwards": len(found)}

    def prefill_load(self, number: int, requests: int) -> dict:
        """Input tokens per second of a prefill node's load. number: of the load, which settles its
        tokens."""
        wanted, since = load.prefills(number, requests), time.time()
        began = time.perf_counter()
        self.engine.loop.run_until_complete(_send(self.engine, wanted, load.PREFILL_IN_FLIGHT))
        span = time.perf_counter() - began
        sent = sum(len(one.prompt) for one in wanted)
        return {
            "seconds": round(span, 3),
            "tokens_per_s": round(sent / span, 1),
            "prefills": len(self._ran(since)),
        }

    def profile_load(self, number: int, requests: int, folder: str) -> dict:
        """A trace of the GPU over a short prefill_load."""
        self.engine.start_profile(
            output_dir=folder, activities=["GPU"], with_stack=False, record_shapes=False
        )
        found = self.prefill_load(number, requests)
        self.engine.stop_profile()
        return found

    def traffic(self, kind: str, number: int) -> dict:
        """A load of users, from an empty cache."""
        engines.flush(self.engine)
        wanted, since = traffic.made(kind, number), time.time()
        began = time.perf_counter()
        found = self.engine.loop.run_until_complete(_talk(self.engine, wanted))
        span = time.perf_counter() - began
        return traffic.summary(found, span) | {"prefills": len(self._ran(since))}

    def _call(self, source: random.Random, count: int, length: int, answer: int = 1) -> float:
        """Milliseconds of one whole call of an idle server, for `count` new prompts of `length`
        tokens."""
        prompts = [list(load.tokens(source, length)) for _ in range(count)]
        time.sleep(load.PAUSE_S)
        began = time.perf_counter()
        self.engine.generate(
            input_ids=prompts,
            sampling_params={"max_new_tokens": answer, "temperature": 0, "ignore_eos": True},
        )
        return round((time.perf_counter() - began) * 1e3, 2)

    def _ran(self, since: float) -> list[dict]:
        """The prefills that the watch saw since then."""
        return [line for line in engines.watched(self.plan["watch"]) if line["at"] >= since]


async def _send(engine, wanted: list[load.Request], in_flight: int) -> None:
    """Every request; at most `in_flight` under way."""
    slots = asyncio.Semaphore(in_flight)

    async def one(request: load.Request) -> None:
        async with slots:
            sampling = {"max_new_tokens": request.answer, "temperature": 0, "ignore_eos": True}
            await engine.async_generate(input_ids=list(request.prompt), sampling_params=sampling)

    await asyncio.gather(*map(one, wanted))


async def _talk(engine, wanted: traffic.Load) -> list[traffic.Answered]:
    """Every request of a load, its first token seen as it comes."""
    slots = asyncio.Semaphore(wanted.in_flight or len(wanted.conversations))

    async def one(talk: traffic.Conversation) -> list[traffic.Answered]:
        await asyncio.sleep(talk.at_s)
        said: list[int] = []
        found = []
        async with slots:
            for turn in talk.turns:
                said += turn.new
                answer, ids = await _streamed(engine, said, turn.answer)
                found.append(answer)
                said += ids
        return found

    return [one for found in await asyncio.gather(*map(one, wanted.conversations)) for one in found]


async def _streamed(engine, prompt: list[int], count: int) -> tuple[traffic.Answered, list[int]]:
    """One request, and the tokens of its answer."""
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    began, first, ids = time.perf_counter(), None, []
    async for part in await engine.async_generate(
        input_ids=list(prompt), sampling_params=sampling, stream=True
    ):
        first, info = first or time.perf_counter() - began, part["meta_info"]
        new = part["output_ids"]  # all so far, or those since the last part
        ids = new if len(new) == info["completion_tokens"] else ids + new
    whole = time.perf_counter() - began
    seen = traffic.Answered(
        first, whole, len(prompt), info["cached_tokens"], info["completion_tokens"]
    )
    return seen, list(ids)


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
