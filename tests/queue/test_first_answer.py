"""tests/gpu/first_answer.py: what it asks, and what it takes of an engine's answers."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

GPU = Path(__file__).parents[1] / "gpu"
# as 0.5.6.post2 logs it
CAPTURED = "Capture cuda graph end. Time elapsed: 4.00 s. mem usage=0.10 GB. avail mem=60.00 GB."


@pytest.fixture
def first_answer(monkeypatch):
    """The module, whose neighbours' names are as plain as `run`: gone again after the test."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
    return importlib.import_module("first_answer")


class Engine:
    """A server with a pool of states as 0.5.6.post2 has it: slots are given out in order, and one
    that is given back is emptied and comes last. Captures have written to slot 0.

    from_slot: the first that is given out; deaf: it answers every prompt alike; unsteady: each
    answer is another.
    """

    def __init__(self, from_slot: int, deaf: bool = False, unsteady: bool = False) -> None:
        self.from_slot, self.deaf, self.unsteady = from_slot, deaf, unsteady
        self.calls: list[str] = []
        self.clear()
        self.written = {0}

    def clear(self) -> None:
        self.free, self.written = list(range(self.from_slot, self.from_slot + 16)), set()

    def flush_cache(self) -> None:
        assert self.calls, "up to 0.5.9 a flush as the first call never returns"
        self.calls.append("flush")
        self.clear()

    def generate(self, input_ids, sampling_params, return_logprob=False, **_):
        self.calls.append("generate")
        return [self._one(prompt, sampling_params["max_new_tokens"]) for prompt in input_ids]

    def _one(self, prompt, count):
        slot = self.free.pop(0)
        base = 0 if self.deaf else sum(prompt)
        base += 500 * (slot in self.written) + len(self.calls) * self.unsteady
        self.written.discard(slot)
        self.free.append(slot)
        tokens = [base % 997 + step for step in range(count)]
        info = {
            "cached_tokens": 0,
            "output_token_logprobs": [(-1.0, token) for token in tokens],
            "output_top_logprobs": [[(-1.0, token), (-9.0, 0)] for token in tokens],
        }
        return {"output_ids": tokens, "meta_info": info}


def faults(first_answer, engine, control=False, log=CAPTURED) -> list[str]:
    asked = importlib.import_module("first_answer_engine").asked(engine)
    captured = [dataclasses.asdict(one) for one in importlib.import_module("judging").captures(log)]
    result = asked | {"captured": captured}
    return [check.what for check in first_answer.judged(result, control) if not check.good]


def test_slots_that_no_capture_writes_are_good(first_answer):
    assert faults(first_answer, Engine(from_slot=1)) == []


def test_a_written_slot_is_a_fault_and_what_a_control_must_show(first_answer):
    assert faults(first_answer, Engine(from_slot=0)) == ["the first answer agrees with a later one"]
    assert faults(first_answer, Engine(from_slot=0), control=True) == []
    assert faults(first_answer, Engine(from_slot=1), control=True) == [
        "answers otherwise without queue, as it must"
    ]


def test_an_engine_that_never_answers_the_same_is_no_control(first_answer):
    engine = Engine(from_slot=0, unsteady=True)
    assert faults(first_answer, engine, control=True) == ["later answers agree with each other"]


def test_without_captures_nothing_is_shown(first_answer):
    assert faults(first_answer, Engine(from_slot=1), log="") == [
        "graphs for decoding were captured"
    ]


def test_answers_that_no_prompt_changes_show_nothing(first_answer):
    assert faults(first_answer, Engine(from_slot=1, deaf=True)) == [
        "different prompts get different answers"
    ]


def test_the_first_call_is_the_prompt_and_some_later_ones_are_behind_a_flush(first_answer):
    engine = Engine(from_slot=1)
    importlib.import_module("first_answer_engine").asked(engine)
    assert engine.calls[0] == "generate" and engine.calls.count("flush") == 1
    assert engine.calls[-1] == "generate"
    assert len(first_answer.first().prompts) == 1


def test_an_engine_starts_with_decoding_graphs_and_is_asked_nothing(first_answer, monkeypatch):
    """What first_answer's plan makes of sglang.Engine's words, and that start() calls nothing."""
    started: list[object] = []

    class Recorded:
        def __init__(self, **words: object) -> None:
            self.words = words
            started.append(self)

    known = [
        ("attention_backend", str),
        ("cuda_graph_bs", list),
        ("cuda_graph_max_bs", int),
        ("disable_cuda_graph", bool),
        ("disable_radix_cache", bool),
        ("enable_piecewise_cuda_graph", bool),
        ("model_path", str),
        ("skip_server_warmup", bool),
    ]
    sglang, srt, args = (ModuleType(name) for name in ("sglang", "srt", "server_args"))
    sglang.Engine = Recorded  # type: ignore[attr-defined]
    args.ServerArgs = dataclasses.make_dataclass("ServerArgs", known)  # type: ignore[attr-defined]
    for name, module in {
        "sglang": sglang,
        "sglang.srt": srt,
        "sglang.srt.server_args": args,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    place = importlib.import_module("launch").Place((), Path("out"))
    solo = importlib.import_module("solo")
    options = solo._options(first_answer.QUESTION, "", ["--out", "out"])
    plan = solo.job(first_answer.QUESTION, place, options).plan
    importlib.import_module("engine").start(plan)
    assert [one.words for one in started] == [
        {
            "attention_backend": "triton",
            "cuda_graph_bs": [1, 2, 4, 8],
            "cuda_graph_max_bs": 8,
            "disable_radix_cache": True,
            "model_path": "out/scratch/models/qwen3-next",
        }
    ]


@pytest.mark.parametrize(("version", "starts"), [("0.5.6.post2", [3, 1]), ("0.5.7", [4, 2])])
def test_log_probabilities_begin_where_a_release_allows(version, starts, monkeypatch):
    """0.5.6 refuses a start behind the prompt."""
    monkeypatch.syspath_prepend(str(GPU))
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__=version))
    assert importlib.import_module("engine").starts([[1, 2, 3, 4], [5, 6]]) == starts
