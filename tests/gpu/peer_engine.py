"""One vLLM engine that does what gain.py asks, as bench_engine.py does: `python peer_engine.py
PLAN.json`, started by turns.begin.

PLAN: model (folder), chunk (most tokens of one forward), fd (the socket to who asks). Seen in the
sources of vLLM 0.26.0 (lines) and 0.33.0: with VLLM_ENABLE_V1_MULTIPROCESSING=0 an engine for one
GPU runs in this process (v1/engine/core_client.py:276, v1/executor/uniproc_executor.py:44), so that
torch's profiler here sees its kernels. What is not said below is vLLM's default.
"""

from __future__ import annotations

import ctypes
import json
import random
import signal
import socket
import sys
import time
from pathlib import Path

import load

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A default of 1024 would want a recurrent state for each: more than the GPU has
# (config/compilation.py:1492). Of 256 or more, graphs have up to 512 tokens (config/vllm.py:1795).
RUNNING = 256
CONTEXT = 2 * load.CHUNK


def main() -> None:
    # a stopped process does not see that gain.py is gone
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    plan = json.loads(Path(sys.argv[1]).read_text())
    line = socket.socket(fileno=plan["fd"])
    line.set_inheritable(False)
    served = Served(plan)
    with line.makefile("rw") as talk:
        for request in talk:
            words = json.loads(request)
            talk.write(json.dumps(getattr(served, words.pop("do"))(**words)) + "\n")
            talk.flush()


class Served:
    """What may be asked for; each answer is a JSON object, as bench_engine.Served's."""

    def __init__(self, plan: dict):
        self.plan = plan
        self.llm = None

    def start(self) -> dict:
        """Seconds until it is ready, and what it says of itself."""
        began = time.monotonic()
        import vllm

        words = dict(
            model=self.plan["model"],
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            seed=1,
            enable_prefix_caching=False,
            max_model_len=CONTEXT,
            max_num_batched_tokens=self.plan["chunk"],
            max_num_seqs=RUNNING,
        )
        self.llm = vllm.LLM(**words)
        ready = time.monotonic()
        self._generate([[load.SMALLEST]])
        how = self.llm.llm_engine.vllm_config.compilation_config
        return {
            "start_s": round(ready - began, 1),
            "first_answer_s": round(time.monotonic() - ready, 1),
            "version": vllm.__version__,
            "mode": f"{how.mode.name}, {how.cudagraph_mode.name}",
            "engine": words,
        }

    def rounds(self, shapes: list[tuple[int, int]], first: int, count: int, seconds: float) -> dict:
        """Milliseconds of whole calls for one token, shapes in turn, round by round; no round
        begins after `seconds`. The tokens are bench_engine's."""
        until = time.monotonic() + seconds
        spans = {f"{requests}x{length}": [] for requests, length in shapes}
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            source = random.Random(f"round {number}")
            for requests, length in shapes:
                spans[f"{requests}x{length}"].append(self._call(source, requests, length))
        return {"ms": spans}

    def prefill_load(self, number: int, requests: int) -> dict:
        """Input tokens per second of a prefill node's load."""
        wanted = [list(one.prompt) for one in load.prefills(number, requests)]
        began = time.perf_counter()
        self._send(wanted, load.PREFILL_IN_FLIGHT)
        span = time.perf_counter() - began
        sent = sum(map(len, wanted))
        return {"seconds": round(span, 3), "tokens_per_s": round(sent / span, 1)}

    def profile(self, count: int, length: int, calls: int, folder: str) -> dict:
        """A trace of the GPU over calls for one token."""
        source = random.Random(f"profile {count} {length}")
        with _traced(folder):
            spans = [self._call(source, count, length) for _ in range(calls)]
        return {"ms": spans}

    def profile_load(self, number: int, requests: int, folder: str) -> dict:
        """A trace of the GPU over a short prefill_load."""
        with _traced(folder):
            return self.prefill_load(number, requests)

    def _call(self, source: random.Random, count: int, length: int) -> float:
        """Milliseconds of one whole call of an idle engine."""
        prompts = [list(load.tokens(source, length)) for _ in range(count)]
        time.sleep(load.PAUSE_S)
        began = time.perf_counter()
        self._generate(prompts)
        return round((time.perf_counter() - began) * 1e3, 2)

    def _generate(self, prompts: list[list[int]]) -> None:
        self.llm.generate(_prompts(prompts), _one_token(), use_tqdm=False)

    def _send(self, prompts: list[list[int]], in_flight: int) -> None:
        """Answer all prompts, at most `in_flight` under way: one comes for each that is done."""
        engine, waiting = self.llm.llm_engine, list(prompts)
        begun, waiting = waiting[:in_flight], waiting[in_flight:]
        self.llm.enqueue(_prompts(begun), _one_token(), use_tqdm=False)
        while engine.has_unfinished_requests():
            done = sum(answer.finished for answer in engine.step())
            begun, waiting = waiting[:done], waiting[done:]
            if begun:
                self.llm.enqueue(_prompts(begun), _one_token(), use_tqdm=False)


def _prompts(prompts: list[list[int]]) -> list:
    import vllm

    return [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]


def _one_token() -> object:
    import vllm

    return vllm.SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False)


class _traced:
    """Trace the GPU, and leave the trace in a folder."""

    def __init__(self, folder: str):
        import torch.profiler

        self.file = Path(folder) / "trace.json"
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def __enter__(self) -> None:
        self.profile.__enter__()

    def __exit__(self, *why: object) -> None:
        import torch

        torch.cuda.synchronize()
        self.profile.__exit__(*why)
        self.profile.export_chrome_trace(str(self.file))


if __name__ == "__main__":  # what vLLM starts may import this file again
    main()
