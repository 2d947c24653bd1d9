"""tests/gpu/mixed_states.py: what it asks, and what it takes of an engine's answers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def mixed_states(monkeypatch):
    """The module, whose neighbours' names are as plain as `run`: gone again after the test."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
    return importlib.import_module("mixed_states")


class Engine:
    """A server with a cache of whole prompts' beginnings. unwritten: it goes on from a state that
    was never written; keeps: tokens of a beginning that it keeps."""

    def __init__(self, keeps: int = 640, unwritten: bool = False) -> None:
        self.keeps, self.unwritten, self.known = keeps, unwritten, set()

    def flush_cache(self) -> None:
        self.known = set()

    def generate(self, input_ids, sampling_params, return_logprob=False, **_):
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params]
        each *= len(input_ids) // len(each)
        return [self._one(tuple(prompt), words) for prompt, words in zip(input_ids, each)]

    def _one(self, prompt, words):
        begun = prompt[: self.keeps] in self.known
        self.known.add(prompt[: self.keeps])
        off = 500 if begun and self.unwritten else 0
        tokens = [sum(prompt) % 997 + off + n for n in range(words["max_new_tokens"])]
        info = {
            "cached_tokens": self.keeps if begun else 0,
            "output_token_logprobs": [(-1.0, token) for token in tokens],
            "output_top_logprobs": [[(-1.0, token), (-9.0, 0)] for token in tokens],
        }
        return {"output_ids": tokens, "meta_info": info}


def faults(mixed_states, engine, control=False, mode="MIXED") -> list[str]:
    asked = importlib.import_module("mixed_states_engine").asked(engine)
    asked["prefills"] = [{"mode": mode}]
    return [check.what for check in mixed_states.judged(asked, control) if not check.good]


WRONG = "shared beginnings answer as without a cache"


def test_a_server_that_goes_on_rightly_is_good(mixed_states):
    assert faults(mixed_states, Engine()) == []
    assert faults(mixed_states, Engine(keeps=10_000)) == [], "one that keeps nothing is right too"


def test_a_state_that_was_never_written_is_a_fault_and_what_a_control_must_show(mixed_states):
    assert faults(mixed_states, Engine(unwritten=True)) == [WRONG]
    assert faults(mixed_states, Engine(unwritten=True), control=True) == []
    assert faults(mixed_states, Engine(), control=True) == [
        "answers otherwise without queue, as it must"
    ]


def test_prompts_that_met_no_decoding_request_show_nothing(mixed_states):
    told = faults(mixed_states, Engine(), mode="EXTEND")
    assert told == ["long prompts were prefilled beside decoding requests"]


def test_long_prompts_do_not_fit_into_the_first_chunk(mixed_states):
    lengths = [len(prompt) for prompt in (*mixed_states.decoding(), *mixed_states.shared())]
    assert sum(lengths[: mixed_states.DECODING]) < mixed_states.ENGINE["chunked_prefill_size"]
    assert min(lengths[mixed_states.DECODING :]) > mixed_states.ENGINE["chunked_prefill_size"]
    assert len(lengths) < mixed_states.DECODED, "some decode until the last one is prefilled"
