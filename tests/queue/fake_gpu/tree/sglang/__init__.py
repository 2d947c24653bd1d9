"""An engine without a model: answers follow from the prompt alone. FAKE_FAULT plants one fault in
the modes of FAKE_FAULT_IN.

FAKE_JOURNAL: a file in which every engine notes each call. FAKE_STEP: what a call for one token
takes, in seconds, times SLOW of sglang/srt/slow.py where the tree has that.
"""

import array
import base64
import functools
import json
import os
import pathlib
import random
import subprocess
import time

from sglang.srt.model_executor.model_runner import Batch, ModelRunner

__version__ = "0.5.9"
FAULT, FAULT_IN = os.environ.get("FAKE_FAULT", ""), os.environ.get("FAKE_FAULT_IN", "graph").split()
CALLS_BEFORE = 3  # answered before an engine dies or gets stuck
STEP_S = float(os.environ.get("FAKE_STEP", "0"))
try:
    from sglang.srt.slow import SLOW
except ImportError:
    SLOW = 1.0


class Engine:
    def __init__(self, **words):
        kinds = ("piecewise", "breakable")
        on = next((kind for kind in kinds if words.get(f"enable_{kind}_cuda_graph")), "")
        self.on, self.name = bool(on), on or "eager"
        if on == "piecewise":
            self.name += f"-{words['piecewise_cuda_graph_compiler']}"
        # what runs is decided by the watch, not here
        self.kept_eager = bool(os.environ.get("PREFILL_KEEP_EAGER"))
        way = "graph" if on and not self.kept_eager else "eager"
        self.fault = FAULT if way in FAULT_IN else ""
        largest = 8192 if self.fault == "beyond-context" else 2048
        sizes = words.get("piecewise_cuda_graph_tokens") or [16, 512, largest]
        self.runner = ModelRunner("" if self.fault in ("graph-unused", "refused") else on, sizes)
        self.draft = ModelRunner("", [], is_draft_worker=True)
        self.seen, self.calls = [], 0
        self.mixed = False
        self.mixes = words.get("enable_mixed_chunk", False)
        self.traced, self.events = None, None
        self.child = subprocess.Popen(["sleep", "600"])
        for pid in (os.getpid(), self.child.pid):
            pathlib.Path(f"{pid}.pid").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        if self.fault == "dies":
            raise ValueError("planted: the engine does not start")
        print(
            "max_total_num_tokens=9, max_prefill_tokens=9,"
            f" max_running_requests={words.get('max_running_requests')}, context_len=9"
        )
        if told := os.environ.get("FAKE_TOLD"):  # a variable
            print(f"{told}={os.environ.get(told)}", flush=True)
        self._note("start")
        if self.fault == "refused":
            print(
                "Disable prefill CUDA graph because decoder layer 1 (NemotronHMLPDecoderLayer) has"
                " no attention, which the tc_piecewise graph needs in every layer."
            )
        if self.on and self.fault not in ("not-captured", "no-report", "refused"):
            self._report(words["model_path"])
        if self.on and self.fault not in ("not-captured", "refused"):
            print(
                "Capture piecewise CUDA graph begin. avail mem=1 GB\nCapture piecewise CUDA graph"
                " end. Time elapsed: 5.36 s. mem usage=0.12 GB. avail mem=1 GB."
            )

    def _report(self, model):
        if "XDG_RUNTIME_DIR" in os.environ:
            said = {"model": model, "feature": self.name, "verdict": "on", "reason": "captured"}
            file = pathlib.Path(os.environ["XDG_RUNTIME_DIR"], "report.json")
            file.write_text(json.dumps({"servers": [said]}))

    def flush_cache(self):
        if not self.calls:
            time.sleep(600)  # 0.5.9: nobody reads the answer before something was generated
        self.seen = self.seen if self.fault == "never-flushed" else []

    def start_profile(self, output_dir, activities, with_stack, record_shapes):
        self._note("profile")
        self.traced, self.events = pathlib.Path(output_dir), []

    def stop_profile(self):
        if self.fault == "no-kernels":
            self.events = []
        import gzip

        with gzip.open(self.traced / "1-TP-0.trace.json.gz", "wt") as out:
            json.dump({"traceEvents": self.events}, out)
        self.events = None

    def _trace(self, tokens):
        """Two kernels of `tokens` microseconds each, the second longer where SLOW, and a call."""
        at = 1e4 * len(self.events)
        for cat, name, began, span in (
            ("kernel", "nvjet_tst_128x64", at, tokens),
            ("kernel", "_chunk_scan_fwd_kernel", at + tokens, tokens * SLOW),
            ("cuda_runtime", "cudaLaunchKernel", at, 5),
        ):
            self.events.append({"ph": "X", "cat": cat, "name": name, "ts": began, "dur": span})

    def generate(
        self,
        input_ids,
        sampling_params,
        return_logprob=False,
        logprob_start_len=None,
        top_logprobs_num=0,
        return_hidden_states=False,
        return_routed_experts=False,
    ):
        if sampling_params["max_new_tokens"] == 1:
            self._note(f"first-token {len(input_ids)}x{len(input_ids[0])}")
        if sampling_params["max_new_tokens"] < 2:
            time.sleep(STEP_S * SLOW)
        if self.events is not None:
            self._trace(sum(map(len, input_ids)))
        self.calls += 1
        if self.fault == "dies-later" and self.calls > CALLS_BEFORE:
            os._exit(9)
        if self.fault == "stuck" and self.calls > CALLS_BEFORE:
            time.sleep(600)
        self.runner.forward(Batch(input_ids))
        self.draft.forward(Batch(input_ids))
        self.runner.forward(Batch(input_ids, "TARGET_VERIFY"))  # what drafts cost is no prefill
        if self.mixes and not return_logprob and self.fault != "never-mixed":
            self.runner.forward(Batch(input_ids, "MIXED"))
            self.mixed = True
        count = sampling_params["max_new_tokens"]
        answers = [self._answer(prompt, count) for prompt in input_ids]
        for prompt, answer in zip(input_ids, answers):
            info = answer["meta_info"]
            info |= self._returned(prompt, return_hidden_states, return_routed_experts)
            if not return_logprob:
                del info["output_token_logprobs"], info["output_top_logprobs"]
        return answers

    def _returned(self, prompt, states, experts):
        """Two of each token's features and the experts of 8 layers: what is asked for."""
        found = {}
        if states:
            shift = 1 if self.fault == "shifted" else 0
            found["hidden_states"] = [
                [[float(token % 7 + 1), float(at + shift)] for at, token in enumerate(prompt)]
            ]
        if experts:
            chosen = [
                0 if self.fault == "stale-experts" else (token + layer + side) % 8
                for token in prompt
                for layer in range(8)
                for side in (0, 1)
            ]
            packed = base64.b64encode(array.array("i", chosen).tobytes()).decode()
            found["routed_experts"] = packed
        return found

    @functools.cached_property
    def loop(self):
        import asyncio  # most engines need none, and it takes as long as the rest

        return asyncio.new_event_loop()

    async def async_generate(self, input_ids, sampling_params, stream=False):
        self._note("load")
        if stream:
            return self._stream(input_ids, sampling_params)
        import asyncio

        await asyncio.sleep(0.001)
        return self.generate([input_ids], sampling_params)[0]

    async def _stream(self, input_ids, sampling_params):
        """Each token as it comes, with all before it."""
        import asyncio

        await asyncio.sleep(STEP_S * SLOW)
        answer = self.generate([input_ids], sampling_params)[0]
        print(f"Decode batch, #running-req: {5 + self.calls % 2}, #token: 9", flush=True)
        for count in range(1, sampling_params["max_new_tokens"] + 1):
            told = answer["meta_info"] | {"completion_tokens": count}
            yield answer | {"output_ids": [7] * count, "meta_info": told}

    def shutdown(self):
        if self.fault == "hangs":
            time.sleep(600)
        self.child.kill()

    def _note(self, what):
        if os.environ.get("FAKE_JOURNAL"):
            with open(os.environ["FAKE_JOURNAL"], "a") as out:
                out.write(f"{self.name} {what}\n")

    def _answer(self, prompt, count):
        source = random.Random(str(prompt))
        tokens = [source.randrange(10, 4000) for _ in range(count)]
        logprobs = [-3 * source.random() for _ in tokens]
        if len(prompt) == 257:
            tokens[3:4] = [5] if self.fault == "wrong-token" else tokens[3:4]
        if self.fault == "mixes-wrongly" and self.mixed and len(prompt) > 1000:
            tokens[1:2] = [5]
        cached = (
            0
            if self.fault == "no-cache"
            else max((len(s) for s in self.seen if tuple(prompt[: len(s)]) == s), default=0)
        )
        self.seen.append(tuple(prompt))
        info = {
            "output_token_logprobs": [
                (value, token, None) for value, token in zip(logprobs, tokens)
            ],
            "output_top_logprobs": [
                [(value, token, None), (value - 1, token + 1, None)]
                for value, token in zip(logprobs, tokens)
            ],
            "cached_tokens": cached,
            "completion_tokens": count,
        }
        return {"output_ids": tokens, "meta_info": info}
