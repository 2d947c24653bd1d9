"""One engine in one mode, timed: `python bench_engine.py PLAN.json`. Started by bench.py, which keeps every other engine away.

PLAN: model (folder), mode, port, loads (how often the load is run), times (per first-token shape), watch, out.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import engine as engines
import launch
import load

SERVER = dict(
    load_format="dummy", max_running_requests=load.IN_FLIGHT, max_mamba_cache_size=3 * load.IN_FLIGHT, max_total_tokens=262144,
    mem_fraction_static=0.75, chunked_prefill_size=load.CHUNK, cuda_graph_max_bs=max(load.DECODE), cuda_graph_bs=list(load.DECODE),
)  # fmt: skip
WARM_UP = 4  # calls of each shape before the timed ones


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    free = used_mib()
    engine, result = engines.start(plan | {"engine": SERVER, "capture": list(load.CAPTURE)})
    Path(plan["out"] + ".ready").touch()
    result["memory_mib"] = {"started": used_mib() - free}
    tell(f"started in {result['start_s']} s, {result['memory_mib']['started'] / 1024:.1f} GiB in use")
    result["warm_up"] = run_load(engine, "warm-up")  # kernels are compiled and tuned for shapes as they come
    result["first_token_ms"] = first_tokens(engine, plan["times"])
    result["loads"] = [run_load(engine, f"load {number + 1}") for number in range(plan["loads"])]
    result["memory_mib"]["after_load"] = used_mib() - free
    result["prefills"] = summary(engines.watched(plan["watch"]))
    result["report"] = engines.report()
    Path(plan["out"]).write_text(json.dumps(result))
    tell("done")
    engine.shutdown()


def tell(text: str) -> None:
    """A line that bench.py shows while this runs."""
    print(f"{launch.MARK}{text}", flush=True)


def used_mib() -> int:
    """Memory in use on the GPU, by everyone."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0])


def first_tokens(engine, times: int) -> dict:
    """Milliseconds of whole calls that generate one token, by shape: median and each time. Prompts are new every time."""
    found, source = {}, random.Random(3)
    for count, length in load.FIRST_TOKEN:
        spans = []
        for _ in range(WARM_UP + times):
            prompts = [list(load.tokens(source, length)) for _ in range(count)]
            began = time.perf_counter()
            engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True})
            spans.append((time.perf_counter() - began) * 1e3)
        timed = spans[WARM_UP:]
        found[f"{count}x{length}"] = {"median": round(statistics.median(timed), 2), "all": [round(span, 2) for span in timed]}
        tell(f"first token of {count} x {length}: {found[f'{count}x{length}']['median']} ms")
    return found


def run_load(engine, name: str) -> dict:
    """The load once, from an empty cache; the same tokens every time."""
    engine.flush_cache()
    time.sleep(1)
    wanted = load.requests()
    began = time.perf_counter()
    done = engine.loop.run_until_complete(_send(engine, wanted))
    span = time.perf_counter() - began
    made = sum(tokens for _, tokens, _ in done)
    measured = {
        "seconds": round(span, 3), "output_tokens": made, "tokens_per_s": round(made / span, 1), "requests_per_s": round(len(done) / span, 3),
        "mean_latency_s": round(statistics.mean(seconds for seconds, _, _ in done), 3), "prompt_tokens": sum(len(one.prompt) for one in wanted),
        "cached_tokens": sum(cached for _, _, cached in done),
    }  # fmt: skip
    tell(f"{name}: {measured['tokens_per_s']} tokens/s, mean latency {measured['mean_latency_s']} s")
    return measured


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


def summary(prefills: list[dict]) -> dict:
    """How many prefills ran, how many of them on graphs, and how many tokens they had on average."""
    on_graph = sum(bool(line["runner"] and line["launches"]) for line in prefills)
    return {"prefills": len(prefills), "on_graph": on_graph, "mean_tokens": round(statistics.mean(line["tokens"] for line in prefills)) if prefills else 0}


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
