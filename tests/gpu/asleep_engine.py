"""One engine that sleeps, wakes and gets other weights, asked in between: `python asleep_engine.py
PLAN.json`.

Started by asleep.py. PLAN: as engine.py's, and steps (names of STEPS), other (a checkpoint of the
same shape, with other weights), new_tokens (of each answer, where a way wants more than usual).
Writes the answers of each step that asks, and what the whole GPU had in use after each, in MiB.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import cases
import engine as engines
import launch
import turns

# of the calls that are asked after a step; the cache is empty then
KINDS = ("single", "batch", "chunked")
NAP = ("kv_cache", "cuda_graph")  # what a nap gives up: the weights stay


def calls(new_tokens: int | None = None) -> list[cases.Call]:
    chosen = [call for call in cases.calls() if call.kind in KINDS]
    return [replace(call, new_tokens=new_tokens or call.new_tokens) for call in chosen]


def release(engine, **parts) -> None:
    """Give memory up. The step behind the last answer may still be under way, and a scheduler that
    is asked meanwhile ends: emptying its cache waits for that step."""
    engines.flush(engine)
    engine.release_memory_occupation(**parts)


def update(engine, folder: str, recapture: bool = False) -> None:
    """Weights from disk. Raises RuntimeError where the release says that it failed."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    asked = UpdateWeightFromDiskReqInput(model_path=folder, recapture_cuda_graph=recapture)
    _check(
        engine.loop.run_until_complete(
            engine.tokenizer_manager.update_weights_from_disk(asked, None)
        )
    )


def update_from_tensors(engine, folder: str) -> None:
    """From tensors of this process, as a trainer beside the engine has them. Its own use of the GPU
    stays. Raises RuntimeError where the release says that it failed."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(Path(folder) / "model.safetensors", device="cuda:0")
    sessions = hasattr(engine, "begin_weight_update")  # 0.5.23 takes tensors within one alone
    if sessions:
        _check(engine.begin_weight_update())
    _check(engine.update_weights_from_tensor(list(tensors.items())))
    if sessions:
        _check(engine.end_weight_update())
    del tensors
    torch.cuda.empty_cache()


def _check(said: object) -> None:
    success, message = said[:2] if isinstance(said, tuple) else (said.success, said.message)
    if not success:
        raise RuntimeError(message)


# Name -> what is done, given the engine and its plan, and whether its answers are asked for
# afterwards.
STEPS = {
    "start": (lambda engine, plan: None, True),
    "nap": (lambda engine, plan: release(engine, tags=[*NAP]), False),
    "woken": (lambda engine, plan: engine.resume_memory_occupation(tags=[*NAP]), True),
    "sleep": (lambda engine, plan: release(engine), False),
    "wake": (lambda engine, plan: engine.resume_memory_occupation(), False),  # the weights are gone
    "same weights": (lambda engine, plan: update(engine, plan["model"]), True),
    "other weights": (lambda engine, plan: update(engine, plan["other"]), True),
    "same weights again": (lambda engine, plan: update(engine, plan["model"]), True),
    "other tensors": (lambda engine, plan: update_from_tensors(engine, plan["other"]), True),
    "captured anew": (lambda engine, plan: update(engine, plan["other"], recapture=True), True),
    "captured again": (lambda engine, plan: update(engine, plan["other"], recapture=True), True),
}
STEPS |= {
    f"{name}, round {number}": STEPS[name]
    for name in ("sleep", "wake", "same weights")
    for number in (1, 2, 3)
}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    gpu = turns.Gpu.here()
    engine, result = engines.start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= {"steps": {}}
    for name in plan["steps"]:
        do, asks = STEPS[name]
        began = time.time()
        do(engine, plan)
        done = {
            "seconds": round(time.time() - began, 2),
            "used_mib": gpu.used_mib(),
            "asked": time.time(),
        }
        if asks:
            if result["steps"]:  # a new engine's cache is empty
                engines.flush(engine)
            asked = calls(plan.get("new_tokens"))
            done |= {"answers": {call.name: engines.ask(engine, call) for call in asked}}
        result["steps"][name] = done | {"answered": time.time()}
        print(
            f"{launch.MARK}{name}: {done['seconds']} s, {done['used_mib']} MiB in use", flush=True
        )
    result["prefills"] = engines.watched(plan["watch"])
    Path(plan["out"]).write_text(json.dumps(result))
    engine.shutdown()


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
