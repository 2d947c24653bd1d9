"""The few names of vLLM that tests/gpu/peer_engine.py uses, as vLLM 0.26.0 has them.

LLM: entrypoints/llm.py:176 (its words; more go to EngineArgs, engine/arg_utils.py:420), generate
:411, enqueue :476. llm_engine: v1/engine/llm_engine.py, has_unfinished_requests :191, step :296,
vllm_config :62. The modes: config/compilation.py:37, :53, :447 and :607. RequestOutput.finished:
outputs.py:118. SamplingParams: sampling_params.py:199, max_tokens :262. TokensPrompt:
inputs/llm.py:106. __version__: version.py:5.

FAKE_PEER_STEP: seconds that a step takes; FAKE_PEER_FAULT: dies, or dies-in-load; FAKE_PEER_SEEN:
a file for what is asked.
"""

import enum
import json
import os
import time
from types import SimpleNamespace

import torch

__version__ = "0.26.0"
FAULT = os.environ.get("FAKE_PEER_FAULT", "")
STEP_S = float(os.environ.get("FAKE_PEER_STEP", "0"))
# words of LLM and EngineArgs
WORDS = {
    *("model", "skip_tokenizer_init", "load_format", "dtype", "seed", "enable_prefix_caching"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "language_model_only"),
}


def _note(what, **more):
    if file := os.environ.get("FAKE_PEER_SEEN"):
        with open(file, "a") as out:
            out.write(json.dumps({"what": what} | more) + "\n")


class CompilationMode(enum.IntEnum):
    VLLM_COMPILE = 3


class CUDAGraphMode(enum.Enum):
    FULL_AND_PIECEWISE = (2, 1)


class TokensPrompt(dict):
    pass


class SamplingParams:
    def __init__(self, *, max_tokens, temperature, ignore_eos, detokenize):
        # without a tokenizer there is nothing to detokenize with (v1/engine/output_processor.py)
        assert max_tokens == 1 and temperature == 0 and ignore_eos and not detokenize


class Engine:
    def __init__(self):
        how = SimpleNamespace(
            mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE
        )
        self.vllm_config = SimpleNamespace(compilation_config=how)
        self.waiting, self.most = [], 0

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        """One request for each step, as a long prompt fills one forward."""
        if FAULT == "dies-in-load" and len(self.waiting) > 2:
            os._exit(7)
        time.sleep(STEP_S)
        self.most = max(self.most, len(self.waiting))
        done = self.waiting.pop(0)
        torch.ran(len(done["prompt_token_ids"]))
        return [SimpleNamespace(finished=True)]


class LLM:
    def __init__(self, **words):
        if FAULT == "dies":
            raise ValueError("planted: no kernel for this GPU")
        assert not words.keys() - WORDS, words
        _note("start", **words)
        self.llm_engine = Engine()

    def generate(self, prompts, sampling_params, use_tqdm):
        _note(
            "generate",
            shape=f"{len(prompts)}x{len(prompts[0]['prompt_token_ids'])}",
            first=prompts[0]["prompt_token_ids"][0],
            env=os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"],
        )
        self.enqueue(prompts, sampling_params, use_tqdm)
        while self.llm_engine.has_unfinished_requests():
            self.llm_engine.step()

    def enqueue(self, prompts, sampling_params, use_tqdm):
        self.llm_engine.waiting += prompts
        _note("enqueue", under_way=len(self.llm_engine.waiting))
