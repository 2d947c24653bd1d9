#!/usr/bin/env python3
"""Time a patched release on this host's GPU, mode beside mode: `python bench.py --out RESULTS`, as run.py otherwise.

The model has the published shape of Nemotron-Nano-9B-v2 and dummy weights. Modes run one after the other, alone on the
GPU. Writes RESULTS/bench.json, and a log of every engine beside it. Exit code 0: every mode was timed, on its graph.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import launch  # noqa: E402
import load  # noqa: E402
import models  # noqa: E402
import modes  # noqa: E402
import run  # noqa: E402

HERE = Path(__file__).resolve().parent
MODES = (modes.EAGER, modes.PIECEWISE, modes.INDUCTOR)
MODEL = "NVIDIA-Nemotron-Nano-9B-v2"


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    place = run.place_of(options)
    began = time.time()
    facts = run.describe(place, options) | {"model": MODEL, "config": models.NANO_9B, "load": _load(options)}
    for name in ("capture", "chunk", "tolerance"):
        facts.pop(name)
    run.say(f"{facts['version']} (queue {facts['queue_release']}) on {facts['gpu']['name']}, torch {facts['torch']['version']}: {' '.join(options.mode)}")
    model = models.write_config(place.out / "models" / MODEL, models.NANO_9B)
    jobs = [job(place, model, number, mode, options) for number, mode in enumerate(options.mode)]
    launch.run_all(place, jobs, 1, began + options.limit, run.say)
    facts["runs"] = [result(place, one) for one in jobs]
    facts["seconds"] = round(time.time() - began)
    facts["passed"] = all(entry["verdict"] == "passed" for entry in facts["runs"])
    (place.out / "bench.json").write_text(json.dumps(facts, indent=1) + "\n")
    show(facts)
    return 0 if facts["passed"] else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run.add_place(parser)
    parser.add_argument("--mode", nargs="+", choices=modes.ALL, default=[*MODES])
    parser.add_argument("--loads", type=int, default=2, help="how often the load is run in each mode (default 2)")
    parser.add_argument("--times", type=int, default=12, help="timed calls for each first-token shape (default 12)")
    parser.add_argument("--limit", type=float, default=1500, help="seconds after which nothing starts any more")
    return parser.parse_args(words)


def _load(options: argparse.Namespace) -> dict:
    wanted = load.requests()
    return {
        "requests": len(wanted), "in_flight": load.IN_FLIGHT, "shared_prefix": load.SHOTS, "mean_prompt": round(sum(len(one.prompt) for one in wanted) / len(wanted)),
        "mean_answer": round(sum(one.answer for one in wanted) / len(wanted), 1), "prefix_cache": True, "capture": list(load.CAPTURE),
        "decode_capture": list(load.DECODE), "chunk": load.CHUNK, "loads": options.loads, "times": options.times,
    }  # fmt: skip


def job(place: launch.Place, model: Path, number: int, mode: str, options: argparse.Namespace) -> launch.Job:
    name = f"bench.{mode}"
    plan = {
        "model": str(model), "mode": mode, "port": 23000 + 1200 * number, "out": str(place.out / f"{name}.json"), "enforce": False,
        "watch": str(place.out / f"{name}.watch"), "loads": options.loads, "times": options.times,
    }  # fmt: skip
    return launch.Job(name, HERE / "bench_engine.py", plan, limit_s=420)


def result(place: launch.Place, one: launch.Job) -> dict:
    """What one mode's engine measured, or why it did not."""
    mode = one.name.split(".", 1)[1]
    log = (place.out / f"{one.name}.log").read_text(errors="replace") if one.code is not None else ""
    entry = {"mode": mode, "seconds": round(one.seconds), "verdict": "not run", "why": one.why, "captured": [asdict(found) for found in run.captures(log)]}
    if one.code is None:
        return entry
    if one.code:
        return entry | {"verdict": "failed", "why": f"{one.why}: {run.error(log)}"}
    measured = json.loads(Path(one.plan["out"]).read_text())
    on_graph = measured["prefills"]["on_graph"]
    wanted = measured["prefills"]["prefills"] if mode in modes.GRAPHS else 0
    good = on_graph >= 0.95 * wanted if wanted else not on_graph
    return entry | measured | {"verdict": "passed" if good else "failed", "why": "" if good else f"{on_graph} of {measured['prefills']['prefills']} prefills ran on a graph"}


def show(facts: dict) -> None:
    for entry in facts["runs"]:
        print(f"\n{entry['mode']}: {entry['verdict']}{' - ' + entry['why'] if entry['why'] else ''} ({entry['seconds']} s, start {entry.get('start_s', '?')} s)")
        for found in entry["captured"]:
            print(f"  {found['what']}: {found['seconds']} s, {found['gb']} GB")
        for number, one in enumerate(entry.get("loads", []), 1):
            print(f"  load {number}: {one['tokens_per_s']} tokens/s, mean latency {one['mean_latency_s']} s, {one['cached_tokens']} of {one['prompt_tokens']} prompt tokens cached")
        if "first_token_ms" in entry:
            print("  first token, ms: " + ", ".join(f"{shape} {found['median']}" for shape, found in entry["first_token_ms"].items()))
            print(f"  memory {entry['memory_mib']} MiB, prefills {entry['prefills']}")
    print(f"\n{facts['tag']} on {facts['gpu']['name']}: {facts['seconds']} s")


if __name__ == "__main__":
    raise SystemExit(main())
