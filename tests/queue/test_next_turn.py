"""tests/gpu/next_turn.py: what it asks, and what it takes of an engine's answers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def next_turn(monkeypatch):
    """The module, whose neighbours' names are as plain as `run`: gone again after the test."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
    return importlib.import_module("next_turn")


class Engine:
    """A server that remembers what it answered. forgets: it goes on from another state."""

    def __init__(self, keeps: int, forgets: bool = False) -> None:
        self.keeps, self.forgets, self.known = keeps, forgets, {}

    def flush_cache(self) -> None:
        self.known = {}

    def generate(self, input_ids, sampling_params, return_logprob=False, **_):
        return [self._one(tuple(prompt), sampling_params) for prompt in input_ids]

    def _one(self, prompt, sampling):
        cached = max((n for n in range(len(prompt)) if prompt[:n] in self.known), default=0)
        off = 500 if cached and self.forgets else 0
        tokens = [sum(prompt) % 997 + off + n for n in range(sampling["max_new_tokens"])]
        self.known[(prompt + tuple(tokens))[: self.keeps]] = True
        info = {
            "cached_tokens": cached,
            "output_token_logprobs": [(-1.0, token) for token in tokens],
            "output_top_logprobs": [[(-1.0, token), (-9.0, 0)] for token in tokens],
        }
        return {"output_ids": tokens, "meta_info": info}


def faults(next_turn, engine, control=False) -> list[str]:
    asked = importlib.import_module("next_turn_engine").asked(engine)
    return [check.what for check in next_turn.judged(asked, control) if not check.good]


def test_a_server_that_goes_on_rightly_is_good(next_turn):
    assert faults(next_turn, Engine(256)) == []


def test_another_state_is_a_fault_and_what_a_control_must_show(next_turn):
    assert faults(next_turn, Engine(256, forgets=True)) == ["next turns answer as without a cache"]
    assert faults(next_turn, Engine(256, forgets=True), control=True) == []
    assert faults(next_turn, Engine(256), control=True) == [
        "answers otherwise without queue, as it must"
    ]


def test_a_cache_without_decoded_states_shows_nothing(next_turn):
    assert faults(next_turn, Engine(20)) == ["next turns went on from decoded states"]


def test_few_decode_in_a_smaller_graph_past_a_kept_state(next_turn):
    few, many = next_turn.few(), next_turn.many()
    assert len(few.prompts) < len(many.prompts) == max(next_turn.ENGINE["cuda_graph_bs"])
    assert any(len(few.prompts) <= size < next_turn.MANY for size in [1, 2, 4])
    ends = [len(prompt) + few.new_tokens for prompt in few.prompts]
    assert all(len(prompt) < next_turn.STATE_AT < end for prompt, end in zip(few.prompts, ends))
