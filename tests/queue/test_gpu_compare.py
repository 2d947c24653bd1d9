"""tests/gpu, on an engine that needs no GPU: what is right passes, and each planted fault is caught and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests/gpu"
FAKE = Path(__file__).parent / "fake_gpu"
MODEL = "qwen3-next"


def run(out: Path, script: str, *words: str, fault: str = "") -> tuple[int, dict, str]:
    """One run of tests/gpu on the fake engine: exit code, what it wrote, what it said."""
    (out / "models" / MODEL).mkdir(parents=True, exist_ok=True)
    (out / "models" / MODEL / "model.safetensors").touch()  # the fake engine has no weights
    environment = os.environ | {"PATH": f"{FAKE / 'bin'}{os.pathsep}{os.environ['PATH']}", "FAKE_FAULT": fault}
    command = [sys.executable, str(GPU / f"{script}.py"), "--out", str(out), "--tree", str(FAKE / "tree"), "--site", str(FAKE / "site"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads((out / "evidence.json").read_text()), done.stdout + done.stderr


def one_mode(tmp_path, fault: str) -> dict:
    """The graph mode's verdict with a fault planted in it."""
    code, found, _ = run(tmp_path, "run", "--model", MODEL, "--mode", "piecewise", fault=fault)
    eager, graph = found["runs"]
    assert eager["verdict"] == "passed" and code == (graph["verdict"] != "passed")
    return graph


def test_engines_that_agree_pass(tmp_path):
    code, found, said = run(tmp_path, "run", "--model", MODEL)
    assert code == 0, said
    assert {entry["mode"]: entry["verdict"] for entry in found["runs"]} == {
        "eager": "passed", "eager-again": "passed", "piecewise": "passed", "piecewise-inductor": "passed", "breakable": "not applicable",
    }  # fmt: skip
    piecewise = next(entry for entry in found["runs"] if entry["mode"] == "piecewise")
    assert piecewise["captured"] == [{"what": "piecewise CUDA graph", "seconds": 5.36, "gb": 0.12}]
    assert (found["version"], found["tree_untouched"], found["torch"]["pinned"], found["torch"]["off_pin"]) == ("0.5.9", True, "2.9.1", True)
    assert found["gpu"]["name"] == "NVIDIA Fake" and "passed" in said


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("wrong-token", "token 3 is 5, not"),
        ("nan", "the log-probability of token 2 is not a number"),
        ("graph-unused", "every prefill that fits ran on the graph: 81 of 81 did not"),
        ("no-cache", "prompts that continue earlier ones hit the cache: missed in cold/"),
        ("dies", "planted: the engine does not start"),
    ],
)
def test_a_planted_fault_is_caught(tmp_path, fault, named):
    graph = one_mode(tmp_path, fault)
    assert graph["verdict"] == "failed" and named in graph["why"]


def test_an_engine_that_hangs_at_its_end_has_still_answered(tmp_path):
    assert one_mode(tmp_path, "hangs")["verdict"] == "passed"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    import compare

    return compare


def answer(tokens, logprobs=None, margin=1.0) -> dict:
    logprobs = logprobs or [-1.0] * len(tokens)
    return {"tokens": tokens, "logprobs": logprobs, "best": [[value, value - margin] for value in logprobs], "cached": 0}


def verdict(compare, mine: dict, reference: dict, **limits):
    return compare.same_answers("same", {"call": {"answers": [mine]}}, {"call": {"answers": [reference]}}, **limits)


def test_equal_answers_agree(compare):
    assert verdict(compare, answer([1, 2]), answer([1, 2])).good


@pytest.mark.parametrize(("margin", "good"), [(0.2, True), (0.31, False)])
def test_another_token_is_right_only_where_the_reference_was_undecided(compare, margin, good):
    found = verdict(compare, answer([1] * 9 + [2]), answer([1] * 9 + [9], margin=margin))
    assert found.good is good
    assert found.numbers["ties"] == int(good)


def test_nothing_is_compared_behind_a_tie(compare):
    found = verdict(compare, answer([1] * 9 + [2, 3], [-1.0] * 9 + [-9.0, -9.0]), answer([1] * 9 + [9, 4], margin=0.1))
    assert found.good and found.numbers["tokens"] == 9


def test_ties_cannot_hide_a_wrong_answer(compare):
    """An op that overwrote its input ended most comparisons at the first token."""
    found = verdict(compare, answer([1, 2, 3, 4]), answer([1, 9, 4, 4], margin=0.1), limits=compare.ROUTED)
    assert not found.good and "only 1 of 4" in found.why


def test_a_tie_does_not_excuse_what_is_no_number(compare):
    assert not verdict(compare, answer([1] * 9 + [0], [-1.0] * 9 + [float("nan")]), answer([1] * 9 + [9], margin=0.1), limits=compare.ROUTED).good


@pytest.mark.parametrize(("off", "good"), [(0.01, True), (0.16, False), (float("nan"), False)])
def test_log_probabilities_within_the_tolerance(compare, off, good):
    assert verdict(compare, answer([1] * 20, [-1.0] * 19 + [-1.0 + off]), answer([1] * 20)).good is good


def test_a_small_but_general_difference_fails(compare):
    assert not verdict(compare, answer([1] * 8, [-1.03] * 8), answer([1] * 8)).good


@pytest.mark.parametrize(("far", "good"), [(4, True), (5, False)])
def test_a_router_may_move_a_few_tokens_far(compare, far, good):
    found = verdict(compare, answer([1] * 100, [-1.4] * far + [-1.0] * (100 - far)), answer([1] * 100), limits=compare.ROUTED)
    assert found.good is good and found.numbers["far"] == far


def test_a_router_excuses_no_general_difference_and_nothing_that_is_no_number(compare):
    assert not verdict(compare, answer([1] * 100, [-1.06] * 100), answer([1] * 100), limits=compare.ROUTED).good
    assert not verdict(compare, answer([1] * 100, [-1.0] * 99 + [float("nan")]), answer([1] * 100), limits=compare.ROUTED).good


def test_a_missing_token_fails(compare):
    assert not verdict(compare, answer([1]), answer([1, 2])).good


def test_prompts_whose_beginning_does_not_matter_are_seen(compare):
    same = {"a": {"answers": [answer([1, 2])]}, "b": {"answers": [answer([1, 2])]}}
    other = same | {"b": {"answers": [answer([1, 3])]}}
    assert not compare.remembers(same, [("a", "b")]).good and compare.remembers(other, [("a", "b")]).good
