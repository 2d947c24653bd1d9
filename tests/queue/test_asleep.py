"""tests/gpu/asleep.py: what it takes of an engine's answers and of the GPU's memory."""

import importlib
from types import SimpleNamespace

import gpumodules
import pytest
from test_gpu_compare import session_of

ANEW = 15  # the step "captured anew"


asleep = gpumodules.fixture("asleep")


def planned(out, model, mode, *words):
    """The plan of one engine."""
    row = importlib.import_module("experiments").EXPERIMENTS["sleep"]
    session = session_of(out, set(), "sleep", *words)
    return importlib.import_module("asleep").job(session, row, model, mode).plan


def engine(steps, token=3, stale=(), used=None):
    """An engine's result: one token in each step, another in `stale` ones; used: MiB after."""
    asked = {}
    for number, step in enumerate(steps):
        began = 10.0 * number
        taken = (used or {}).get(step, 1000)
        asked[step] = {"used_mib": taken, "asked": began, "answered": began + 5}
        if step.rstrip(" 23") not in ("nap", "sleep", "wake"):
            answer = {"tokens": [token + (step in stale)] * 8}
            answer |= {"logprobs": [-1.0] * 8, "best": [[-1.0, -3.0]] * 8}
            asked[step]["answers"] = {f"single-{n}": {"answers": [answer]} for n in range(8)}
    begun = [done["asked"] + 1 for done in asked.values()]
    return {"steps": asked, "prefills": [{"at": at, "tokens": 64, "launches": 5} for at in begun]}


def faults(asleep, mine, eager):
    """What is wrong with an engine."""
    found = asleep.compared("breakable", mine, eager, held=64)
    return [check.what.removeprefix("breakable").lstrip(",: ") for check in found if not check.good]


@pytest.fixture
def steps(asleep):
    return asleep.STEPS


EAGER, BOUND = "agrees with eager prefill", "answers as after 'other weights'"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ({}, []),
        ({"stale": ["woken"]}, [f"woken: {EAGER}", "woken: answers as after 'start'"]),
        (
            {"stale": ["other weights"]},
            [
                f"other weights: {EAGER}",
                *(f"{late}: {BOUND}" for late in ("other tensors", "captured anew")),
                f"captured again: {BOUND}",
            ],
        ),
        ({"stale": ["captured anew"]}, [f"captured anew: {said}" for said in (EAGER, BOUND)]),
        *(
            ({"used": {step: 1065}}, [f"{step}: the graph's memory was given up"])
            for step in ("nap", "sleep")
        ),
        ({"used": {"nap": 1064, "sleep": 1064}}, []),
    ],
)
def test_another_answer_and_memory_that_stays_are_faults(asleep, steps, words, wrong):
    assert faults(asleep, engine(steps, **words), engine(steps)) == wrong


@pytest.mark.parametrize(
    "step, first",
    [
        ("woken", "start"),
        ("same weights 3", "start"),
        ("same weights again", "start"),
        ("other tensors", "other weights"),
        ("captured again", "other weights"),
    ],
)
def test_an_engine_that_answers_otherwise_than_before_is_at_fault(asleep, steps, step, first):
    """Also where eager prefill changes with it."""
    both = engine(steps, stale=[step])
    assert faults(asleep, both, both) == [f"{step}: answers as after {first!r}"]


def test_a_router_is_held_against_a_server_with_the_graph(asleep, steps, tmp_path):
    """0.5.10 to 0.5.13 give Qwen3-Next another gated norm where no graph is on."""
    known = {"enable_breakable_cuda_graph", "disable_piecewise_cuda_graph"}
    found = asleep.references_of("qwen3-next", ["breakable", "piecewise"], known)
    assert found == {"breakable": "reference", "piecewise": "reference"}
    assert asleep.references_of("nemotron-h", ["breakable"], known) == {}
    for mode, kept in (("reference", True), ("breakable", False), ("eager", False)):
        plan = planned(tmp_path, "qwen3-next", mode)
        assert plan["keep_eager"] == kept
    mine, other = engine(steps), engine(steps, token=7)
    judged = asleep.compared("breakable", mine, other, 64, engine(steps))
    assert all(check.good for check in judged)
    assert faults(asleep, mine, other)


def test_a_recapture_that_keeps_the_old_graph_is_a_fault(asleep, steps):
    mine = engine(steps, used={"captured again": 1065})
    assert faults(asleep, mine, engine(steps)) == ["a recapture keeps no old graph"]
    eager = engine(steps, used={"captured again": 1001})  # what other parts of a server take
    assert faults(asleep, mine, eager) == []


def test_a_prefill_that_no_graph_takes_may_run_eagerly(asleep, steps):
    """0.5.16 pads to at most twice the tokens: 20 fit neither 16 nor 64."""
    mine, missed = engine(steps), ["captured anew: prefills were replayed"]
    mine["prefills"].append(dict(mine["prefills"][ANEW], tokens=20, launches=0))
    assert faults(asleep, mine, engine(steps)) == missed
    mine["prefills"][0]["padding"] = 2
    assert faults(asleep, mine, engine(steps)) == []
    mine["prefills"].remove(mine["prefills"][ANEW])  # no other ran in that step
    assert faults(asleep, mine, engine(steps)) == missed


def test_gated_delta_nets_have_a_graph_where_a_release_must_be_told(asleep, tmp_path):
    plan = planned(tmp_path, "qwen3-next-triton", "breakable")
    assert plan["enforce"] and plan["engine"]["linear_attn_prefill_backend"] == "triton"
    assert not planned(tmp_path, "llama", "breakable")["enforce"]
    assert planned(tmp_path, "qwen3-5", "eager")["engine"]["mm_attention_backend"] == "triton_attn"


def test_a_new_engine_answers_before_it_is_told_to_flush(asleep, monkeypatch):
    """0.5.9's answer to a flush is read by nobody before something was generated: the run hung."""
    told, engines = [], importlib.import_module("engine")

    class Engine:
        def flush_cache(self):
            told.append("flush")

    monkeypatch.setitem(asleep.ACTIONS, "same", lambda engine, plan: None)
    monkeypatch.setattr(asleep.machine, "used_mib", lambda: 1)
    monkeypatch.setattr(engines, "ask", lambda engine, call: told.append("ask") or {})
    found = asleep.asked(Engine(), {"steps": ["start", "same"]})
    count = len(asleep.calls())
    assert told == ["ask"] * count + ["flush"] + ["ask"] * count
    assert [one["used_mib"] for one in found["steps"].values()] == [1, 1]


@pytest.mark.parametrize("step", ["nap", "sleep"])
def test_memory_is_given_up_when_the_step_behind_the_last_answer_is_over(asleep, step):
    """A Qwen3-Next's server died: "should be called only when server is idle"."""
    told = []

    class Engine:
        def flush_cache(self):
            told.append("flush")
            return SimpleNamespace(success=len(told) > 2)  # twice it is still under way

        def release_memory_occupation(self, tags=None):
            told.append("release")

    asleep.ACTIONS[step](Engine(), {})
    assert told == ["flush", "flush", "flush", "release"]


def test_a_model_with_a_vision_tower_sleeps_with_its_own_attention(asleep, tmp_path):
    """Bundles may lack FlashAttention 3, which is vision's default."""
    plan = planned(tmp_path, "qwen3-5", "breakable", "--tp", "2")
    assert plan["engine"]["mm_attention_backend"] == "triton_attn"
    assert plan["model"].endswith("qwen3-5-wide") and plan["other"].endswith("qwen3-5-wide-other")
    assert asleep.references_of("qwen3-5", ["breakable"], set()) == {}
