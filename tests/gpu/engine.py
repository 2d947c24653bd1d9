"""One engine in one mode: `python engine.py PLAN.json`. Started by run.py, which sets its
environment.

PLAN: model (folder), mode, enforce, breakable and piecewise (as modes.flags), engine
(sglang.Engine's words for this model), port, watch (where watch/sitecustomize.py writes), out (the
answers, as JSON).
Optional: question (the module whose `asked` asks, and whose `prepare` runs before the engine
starts; without one `asked` below), capture (sizes; empty: the release's own), passes (instead of
the mode's), ask (pass -> more of generate()'s words), logprobs (whether they are asked for).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import cases
import launch
import modes
import returned

ENGINE = dict(
    skip_tokenizer_init=True,
    dtype="bfloat16",
    attention_backend="flashinfer",
    sampling_backend="pytorch",
    grammar_backend="none",
    log_level="info",
    random_seed=1,
    mem_fraction_static=0.5,
    max_total_tokens=65536,
    max_mamba_cache_size=512,
    max_running_requests=32,
    chunked_prefill_size=cases.CHUNK,
    cuda_graph_max_bs=8,
    # 0.5.13 chooses kernels for NemotronH's experts that take flashinfer over five minutes to
    # compile
    moe_runner_backend="triton",
)


def _fields(kind: type) -> set[str]:
    """The names of ServerArgs' fields: a dataclass up to 0.5.18, later a msgspec.Struct."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(kind.__struct_fields__)


def start(plan: dict):
    """The engine, and how long it took to start, in seconds. Exits with a sentence where the
    release has no such mode."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    known = _fields(ServerArgs)
    sizes, enforce = list(plan.get("capture", cases.CAPTURE)), plan.get("enforce", False)
    kinds = {kind: plan.get(kind, True) for kind in ("breakable", "piecewise")}
    chosen = modes.flags(plan["mode"], known, sizes, enforce, **kinds)
    if isinstance(chosen, modes.Unavailable):
        sys.exit(f"not applicable: {chosen.reason}")
    where = {"model_path": plan["model"], "port": plan["port"], "nccl_port": plan["port"] + 1}
    words = ENGINE | plan.get("engine", {}) | chosen | where
    if "speculative_algorithm" in words:
        words["speculative_draft_model_path"] = plan["model"]
    if "cuda_graph_max_bs" not in known:
        for name in {"cuda_graph_max_bs", "cuda_graph_bs"} & words.keys():
            words[f"{name}_decode"] = words.pop(name)
    dropped = sorted(set(words) - known)
    began = time.time()
    engine = sglang.Engine(**{name: value for name, value in words.items() if name in known})
    seconds = round(time.time() - began, 1)
    return engine, {"start_s": seconds, "flags": chosen, "dropped_flags": dropped}


def request(call: cases.Call, logprobs: bool = True, **more: object) -> dict:
    """sglang.Engine.generate's words for a call: deterministic, and with the log-probabilities of
    the answer and of the two best tokens at each step. logprobs: without them a prefill may be
    mixed with decoding. more: words for what else is asked or to be returned."""
    prompts = [list(prompt) for prompt in call.prompts]
    sampling = {"max_new_tokens": call.new_tokens, "temperature": 0, "ignore_eos": True}
    words: dict = {"input_ids": prompts, "sampling_params": sampling}
    if logprobs:
        words |= {"return_logprob": True, "top_logprobs_num": 2}
        if "logprob_start_len" not in more:
            words["logprob_start_len"] = starts(prompts)
    return words | more


def ask(engine, call: cases.Call, logprobs: bool = True, **more: object) -> dict:
    """One call's answers: tokens, their log-probabilities, the two best at each step, cached prompt
    tokens; and its time span. logprobs, more: as `request` has them."""
    words, began = request(call, logprobs, **more), time.time()
    answers, ended = engine.generate(**words), time.time()
    pairs = zip(answers, call.prompts, strict=True)
    answered = [read(answer, len(prompt)) for answer, prompt in pairs]
    return {"from": began, "to": ended, "answers": answered}


def starts(prompts: list[list[int]]) -> list[int]:
    """Where the log-probabilities of each prompt begin: behind it, since asking for any of its own
    makes releases run it eagerly. Up to 0.5.6 its last token's are the least."""
    import sglang

    own = int(modes.before(sglang.__version__, 7))
    return [len(prompt) - own for prompt in prompts]


def read(answer: dict, prompt_tokens: int) -> dict:
    """What is compared of one answer of sglang.Engine.generate()."""
    info = answer["meta_info"]
    found = {"tokens": answer["output_ids"], "cached": info["cached_tokens"]}
    if "output_token_logprobs" in info:
        found |= {
            "logprobs": [entry[0] for entry in info["output_token_logprobs"]],
            "best": [[entry[0] for entry in step] for step in info["output_top_logprobs"]],
        }
    return found | returned.kept(info, prompt_tokens)


def flush(engine) -> None:
    """Empty the prefix cache. A scheduler refuses while the step behind the last answer is still
    under way, so ask again; RuntimeError after 5 s. Up to 0.5.9 never an engine's first call: the
    answer is read by the loop that the first generate() starts
    (managers/tokenizer_communicator_mixin.py:346)."""
    for _ in range(50):
        if getattr(engine.flush_cache(), "success", True):
            return
        time.sleep(0.1)
    raise RuntimeError("the prefix cache is never empty")


def watched(pattern: str) -> list[dict]:
    """What the watch wrote: one dict per prefill of each of the engine's processes."""
    folder, name = Path(pattern).parent, Path(pattern).name
    return [
        json.loads(line) | {"process": file.suffix[1:]}
        for file in sorted(folder.glob(f"{name}.[0-9]*"))  # of a process; not .files
        for line in file.read_text().splitlines()
    ]


def report() -> object:
    """What the queue's own report says on this server; None where the tree has none. Its folder is
    run, not its module, which would import all of sglang first: 16 s of the 62 that an engine took,
    beside eleven others."""
    import sglang

    folder = Path(sglang.__file__).parent / "srt/prefill_graph"
    if not folder.is_dir():
        return None
    words = [sys.executable, str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stderr or done.stdout)[-500:]}


def asked(engine, plan: dict) -> dict:
    """The answers to the plan's passes, and what the queue's report says afterwards."""
    passes, seconds = {}, {}
    for name in plan.get("passes") or cases.passes(plan["mode"]):
        if name != cases.WARM and passes:  # a new engine's cache is empty
            flush(engine)
        more = {"logprobs": plan.get("logprobs", True)} | plan.get("ask", {}).get(name, {})
        began = time.time()
        passes[name] = {call.name: ask(engine, call, **more) for call in cases.of_pass(name)}
        seconds[name] = round(time.time() - began, 1)
        print(f"{launch.MARK}pass {name} answered in {seconds[name]} s", flush=True)
    return {"passes": passes, "pass_s": seconds, "report": report()}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    question = importlib.import_module(plan.get("question", "engine"))
    getattr(question, "prepare", lambda: None)()
    engine, result = start(plan)
    Path(plan["out"] + ".ready").touch()
    result |= question.asked(engine, plan)
    result["prefills"] = watched(plan["watch"])
    Path(plan["out"]).write_text(json.dumps(result))
    print("all answers written", flush=True)
    engine.shutdown()


if __name__ == "__main__":  # the engine's own processes import this file again
    main()
