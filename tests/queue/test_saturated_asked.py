"""tests/gpu/saturated.py: what it asks, and what it takes of an engine's answers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def saturated(monkeypatch):
    """The module, whose neighbours' names are as plain as `run`: gone again after the test."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.12"))
    return importlib.import_module("saturated")


class Engine:
    """stale: how many of the prompts that come at once start from another request's state."""

    def __init__(self, stale: int = 0) -> None:
        self.stale = stale

    def generate(self, input_ids, sampling_params, return_logprob=False, **_):
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params]
        each *= len(input_ids) // len(each)
        stale = self.stale if len(input_ids) > 1 else 0
        return [
            self._one(prompt, words, number < stale)
            for number, (prompt, words) in enumerate(zip(input_ids, each, strict=True))
        ]

    def _one(self, prompt, words, stale):
        tokens = [sum(prompt) % 997 + 500 * stale + n for n in range(words["max_new_tokens"])]
        info = {
            "cached_tokens": 0,
            "output_token_logprobs": [(-1.0, token) for token in tokens],
            "output_top_logprobs": [[(-1.0, token), (-9.0, 0)] for token in tokens],
        }
        return {"output_ids": tokens, "meta_info": info}


def checks(saturated, engine, control=False, mixed=40):
    asked = importlib.import_module("saturated_engine").asked(engine)
    asked["prefills"] = [{"mode": "MIXED"}] * mixed + [{"mode": "EXTEND"}] * 10
    return {check.what: check for check in saturated.judged(asked, control)}


RIGHT = "a saturated server answers each prompt as alone"
CONTROL = "answers otherwise without queue, as it must"


def test_a_server_that_answers_as_alone_is_good(saturated):
    assert all(check.good for check in checks(saturated, Engine()).values())
    assert not checks(saturated, Engine(), control=True)[CONTROL].good


def test_each_prompt_from_a_foreign_state_is_counted(saturated):
    found = checks(saturated, Engine(stale=3))
    assert [what for what, check in found.items() if not check.good] == [RIGHT]
    assert found[RIGHT].why.startswith(
        "3 prompts answered otherwise: long 1 of 100, short 2 of 200"
    )
    assert checks(saturated, Engine(stale=3), control=True)[CONTROL].good


def test_prompts_that_met_no_decoding_request_show_nothing(saturated):
    assert not checks(saturated, Engine(), mixed=3)[
        "prompts were prefilled beside decoding requests"
    ].good


def test_what_is_asked(saturated):
    """300 prompts. No chunk of the load is without a long prompt, and slots are as few as running
    requests, without a cache: a freed slot is given out at once."""
    made = saturated.calls()
    assert len(made) == len({call.name for call in made}) == saturated.PROMPTS
    lengths = [len(call.prompts[0]) for call in made]
    assert all(max(lengths[n : n + 3]) >= saturated.LONG[0] for n in range(len(made) - 2))
    assert max(length for length in lengths if length < saturated.LONG[0]) <= saturated.SHORT[1]
    engine = saturated.ENGINE
    assert engine["max_mamba_cache_size"] == engine["max_running_requests"]
    assert engine["disable_radix_cache"] and engine["enable_mixed_chunk"]
    assert made == saturated.calls()
