"""One vLLM engine that gain.py times: `python peer_engine.py PLAN.json`.

PLAN: as timing.py has it, and model (folder). Seen in the sources of vLLM 0.26.0 (lines) and
0.33.0: with VLLM_ENABLE_V1_MULTIPROCESSING=0 an engine for one GPU runs in this process
(v1/engine/core_client.py:276, v1/executor/uniproc_executor.py:44), so that torch's profiler here
sees its kernels. What is not said below is vLLM's default.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import timing
import traffic

# A default of 1024 would want a recurrent state for each: more than the GPU has
# (config/compilation.py:1492). Of 256 or more, graphs have up to 512 tokens (config/vllm.py:1795).
RUNNING = 256
CONTEXT = 2 * traffic.CHUNK


class Timed(timing.Timed):
    """An engine of vLLM."""

    PROFILED_ANSWER = 1  # it generates one at the least
    llm = None

    def start(self) -> dict:
        """And what it says of itself."""
        began = time.monotonic()
        import vllm

        words = dict(
            model=self.plan["model"],
            skip_tokenizer_init=True,
            language_model_only=True,  # else Qwen3.5's processor of images wants a tokenizer
            load_format="dummy",
            dtype="bfloat16",
            seed=1,
            enable_prefix_caching=False,
            max_model_len=CONTEXT,
            max_num_batched_tokens=traffic.CHUNK,
            max_num_seqs=RUNNING,
        )
        self.llm = vllm.LLM(**words)
        ready = time.monotonic()
        self.generate([[traffic.SMALLEST]], 1)
        how = self.llm.llm_engine.vllm_config.compilation_config
        return {
            "start_s": round(ready - began, 1),
            "first_answer_s": round(time.monotonic() - ready, 1),
            "version": vllm.__version__,
            "mode": f"{how.mode.name}, {how.cudagraph_mode.name}",
            "engine": words,
        }

    def generate(self, prompts: list[list[int]], answer: int) -> None:
        self.llm.generate(_prompts(prompts), _sampling(answer), use_tqdm=False)

    def send(self, prompts: Sequence[list[int]], in_flight: int) -> None:
        """One comes for each that is done."""
        engine, begun, waiting = self.llm.llm_engine, prompts[:in_flight], prompts[in_flight:]
        self.llm.enqueue(_prompts(begun), _sampling(1), use_tqdm=False)
        while engine.has_unfinished_requests():
            done = sum(answer.finished for answer in engine.step())
            begun, waiting = waiting[:done], waiting[done:]
            if begun:
                self.llm.enqueue(_prompts(begun), _sampling(1), use_tqdm=False)

    @contextlib.contextmanager
    def traced(self, folder: str) -> Iterator[None]:
        import torch.profiler

        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        with profile:
            yield
            torch.cuda.synchronize()
        profile.export_chrome_trace(str(Path(folder) / "trace.json"))


def _prompts(prompts: Sequence[list[int]]) -> list:
    import vllm

    return [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]


def _sampling(count: int) -> object:
    import vllm

    return vllm.SamplingParams(max_tokens=count, temperature=0, ignore_eos=True, detokenize=False)


if __name__ == "__main__":  # what vLLM starts may import this file again
    timing.run(Timed)
