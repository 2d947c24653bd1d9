"""One engine of sglang that gain.py times: `python bench_engine.py PLAN.json`.

PLAN: as timing.py has it, and model (folder), mode, port, engine (sglang.Engine's words), watch,
capture (tokens that graphs are captured for).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

import engine as engines
import graphs
import timing
import traffic


def sampling(count: int) -> dict:
    return {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}


class Timed(timing.Timed):
    """An engine of a tree."""

    engine = None

    def start(self) -> dict:
        self.engine, result = engines.start(self.plan)
        # Up to 0.5.9 nobody reads the answer to a flush before something was generated
        # (managers/tokenizer_communicator_mixin.py:346).
        began = time.monotonic()
        self.generate([[traffic.SMALLEST]], 2)
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
        """A load of users, from a cache that has nothing else than what the load wants there."""
        engines.flush(self.engine)
        wanted = traffic.made(kind, number)
        self.send([list(prompt) for prompt in wanted.cached], traffic.PREFILL_IN_FLIGHT)
        since, began = time.time(), time.perf_counter()
        found = self.engine.loop.run_until_complete(_talk(self.engine, wanted))
        span = time.perf_counter() - began
        lines = engines.watched(self.plan["watch"])
        return traffic.summary(found, span) | {
            "prefills": self.forwards(since),
            "replayed": replayed(lines, since),
        }


def replayed(lines: Sequence[dict], since: float) -> dict[str, int]:
    """Of the prefills since then that ran on a graph: how many, their tokens, and the rows of the
    sizes that they took, each the smallest that fits. lines: the watch's."""
    sizes = next((line["captured"] for line in lines if line.get("captured")), [])
    ran = [line["tokens"] for line in lines if line["at"] >= since and graphs.on_graph(line)]
    rows = sum(min((size for size in sizes if size >= count), default=count) for count in ran)
    return {"prefills": len(ran), "tokens": sum(ran), "rows": rows}


async def _send(engine, prompts: Sequence[list[int]], in_flight: int) -> None:
    """Every request for one token; at most `in_flight` under way."""
    slots = asyncio.Semaphore(in_flight)

    async def one(prompt: list[int]) -> None:
        async with slots:
            await engine.async_generate(input_ids=prompt, sampling_params=sampling(1))

    await asyncio.gather(*map(one, prompts))


async def _talk(engine, wanted: traffic.Load) -> list[traffic.Answered]:
    """Every request of a load, its first token seen as it comes."""
    slots = asyncio.Semaphore(wanted.in_flight or len(wanted.requests))

    async def one(request: traffic.Request) -> traffic.Answered:
        await asyncio.sleep(request.at_s)
        async with slots:
            return await _streamed(engine, request)

    return await asyncio.gather(*map(one, wanted.requests))


async def _streamed(engine, request: traffic.Request) -> traffic.Answered:
    began, first = time.perf_counter(), None
    async for part in await engine.async_generate(
        input_ids=list(request.prompt), sampling_params=sampling(request.answer), stream=True
    ):
        first, info = first or time.perf_counter() - began, part["meta_info"]
    whole, asked = time.perf_counter() - began, len(request.prompt)
    return traffic.Answered(first, whole, asked, info["cached_tokens"], info["completion_tokens"])


if __name__ == "__main__":  # the engine's own processes import this file again
    timing.run(Timed)
