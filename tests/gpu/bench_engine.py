"""One engine of sglang that does what gain.py asks: `python bench_engine.py PLAN.json`, started by
turns.begin.

PLAN: model (folder), mode, port, engine (sglang.Engine's words), watch, fd (the socket to who
asks), capture (tokens that graphs are captured for). Idle until asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

import engine as engines
import load
import served
import traffic


def sampling(count: int) -> dict:
    return {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}


class Served(served.Served):
    """An engine of a tree."""

    engine = None

    def start(self) -> dict:
        self.engine, result = engines.start(self.plan)
        # Up to 0.5.9 nobody reads the answer to a flush before something was generated
        # (managers/tokenizer_communicator_mixin.py:346).
        began = time.monotonic()
        self.generate([[load.SMALLEST]], 2)
        return result | {"first_answer_s": round(time.monotonic() - began, 1)}

    def generate(self, prompts: list[list[int]], answer: int) -> None:
        self.engine.generate(input_ids=prompts, sampling_params=sampling(answer))

    def send(self, prompts: Sequence[list[int]], in_flight: int) -> None:
        self.engine.loop.run_until_complete(_send(self.engine, prompts, in_flight))

    @contextlib.contextmanager
    def traced(self, folder: str) -> Iterator[None]:
        """A profiled call generates nothing: so no step behind the prefill is in the trace."""
        self.engine.start_profile(
            output_dir=folder, activities=["GPU"], with_stack=False, record_shapes=False
        )
        yield
        self.engine.stop_profile()

    def forwards(self, since: float) -> int:
        return sum(line["at"] >= since for line in engines.watched(self.plan["watch"]))

    def traffic(self, kind: str, number: int) -> dict:
        """A load of users, from an empty cache."""
        engines.flush(self.engine)
        wanted, since = traffic.made(kind, number), time.time()
        began = time.perf_counter()
        found = self.engine.loop.run_until_complete(_talk(self.engine, wanted))
        span = time.perf_counter() - began
        return traffic.summary(found, span) | {"prefills": self.forwards(since)}


async def _send(engine, prompts: Sequence[list[int]], in_flight: int) -> None:
    """Every request for one token; at most `in_flight` under way."""
    slots = asyncio.Semaphore(in_flight)

    async def one(prompt: list[int]) -> None:
        async with slots:
            await engine.async_generate(input_ids=prompt, sampling_params=sampling(1))

    await asyncio.gather(*map(one, prompts))


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
    began, first, ids = time.perf_counter(), None, []
    async for part in await engine.async_generate(
        input_ids=list(prompt), sampling_params=sampling(count), stream=True
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
    served.serve(Served)
