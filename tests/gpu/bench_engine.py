"""One engine in one mode that does what bench.py asks: `python bench_engine.py PLAN.json`, started by turns.begin.

PLAN: model (folder), mode, port, engine (sglang.Engine's words), watch, fd (the socket to bench.py). Idle until asked.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import random
import signal
import socket
import statistics
import sys
import time
from pathlib import Path

import engine as engines
import load

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    # A stopped process does not see that bench.py is gone, and would keep its share of the GPU. Its children follow by their own.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    plan = json.loads(Path(sys.argv[1]).read_text())
    line = socket.socket(fileno=plan["fd"])
    line.set_inheritable(False)  # its end must be seen when this process ends, whatever is left behind
    import sglang  # noqa: F401  while others start

    served = Served(plan)
    with line.makefile("rw") as talk:
        for request in talk:
            words = json.loads(request)
            talk.write(json.dumps(getattr(served, words.pop("do"))(**words)) + "\n")
            talk.flush()


class Served:
    """What bench.py may ask for; each answer is a JSON object."""

    def __init__(self, plan: dict):
        self.plan = plan
        self.engine = None

    def start(self) -> dict:
        self.engine, result = engines.start(self.plan | {"capture": list(load.CAPTURE)})
        # Up to 0.5.9 nobody reads the answer to a flush before something was generated (managers/tokenizer_communicator_mixin.py:346).
        self.engine.generate(input_ids=[[load.SMALLEST]], sampling_params={"max_new_tokens": 2, "temperature": 0, "ignore_eos": True})
        return result

    def first_token(self, count: int, length: int, calls: int, seed: int) -> dict:
        """Milliseconds of whole calls that generate one token for `count` new prompts of `length` tokens."""
        engines.flush(self.engine)
        source, spans = random.Random(f"{seed} {count} {length}"), []
        for _ in range(calls):
            prompts = [list(load.tokens(source, length)) for _ in range(count)]
            began = time.perf_counter()
            self.engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True})
            spans.append(round((time.perf_counter() - began) * 1e3, 2))
        return {"ms": spans}

    def load(self) -> dict:
        """The load once, from an empty cache; the same tokens every time."""
        engines.flush(self.engine)
        wanted = load.requests()
        since, began = time.time(), time.perf_counter()
        done = self.engine.loop.run_until_complete(_send(self.engine, wanted))
        span = time.perf_counter() - began
        made = sum(tokens for _, tokens, _ in done)
        ran = [line for line in engines.watched(self.plan["watch"]) if line["at"] >= since]
        return {
            "seconds": round(span, 3), "tokens_per_s": round(made / span, 1), "mean_latency_s": round(statistics.mean(seconds for seconds, _, _ in done), 3),
            "output_tokens": made, "prompt_tokens": sum(len(one.prompt) for one in wanted), "cached_tokens": sum(cached for _, _, cached in done),
            "prefills": len(ran), "prefill_tokens": round(statistics.mean(line["tokens"] for line in ran)) if ran else 0,
        }  # fmt: skip


async def _send(engine, wanted: list[load.Request]) -> list[tuple[float, int, int]]:
    """(seconds, generated tokens, cached prompt tokens) of every request; at most IN_FLIGHT under way."""
    slots = asyncio.Semaphore(load.IN_FLIGHT)

    async def one(request: load.Request) -> tuple[float, int, int]:
        async with slots:
            began = time.perf_counter()
            sampling = {"max_new_tokens": request.answer, "temperature": 0, "ignore_eos": True}
            answer = await engine.async_generate(input_ids=list(request.prompt), sampling_params=sampling)
            info = answer["meta_info"]
            return time.perf_counter() - began, info["completion_tokens"], info["cached_tokens"]

    return await asyncio.gather(*(one(request) for request in wanted))


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
