"""tests/gpu/ready.py: what it asks servers, and what it takes of --require's answers."""

import copy
import hashlib
import importlib

import gpumodules
import pytest


@pytest.fixture
def ready(monkeypatch):
    return gpumodules.load(monkeypatch, "ready")


def asked(code: int) -> dict:
    return {"at": 1.0, "code": code, "said": ""}


SEEN = {
    "before": asked(4),
    "starting": [asked(4), asked(3), asked(3), asked(0)],
    "ready": asked(0),
    "another tree": asked(1),
    "counts": [{"on_graph": 7, "eager": {"too long": 1}}],
    "beside an unpatched one": asked(3),
    "of one server": asked(0),
    "of the other": asked(3),
    "after": asked(4),
}


def faults(module, **changed) -> list[str]:
    return [one.what for one in module.judged(copy.deepcopy(SEEN) | changed) if not one.good]


def test_codes_as_promised_are_good(ready):
    assert faults(ready) == []


STAGES = sorted(set(SEEN) - {"starting", "counts"})


@pytest.mark.parametrize("stage", STAGES)
def test_each_other_exit_code_is_a_fault(ready, stage):
    for code in {0, 1, 2, 3, 4} - {SEEN[stage]["code"]}:
        assert faults(ready, **{stage: asked(code)}) == [stage]


@pytest.mark.parametrize("codes", [[0, 0], [4, 4], [3, 1, 0]], ids=str)
def test_a_server_that_starts_has_no_record_for_a_while_and_no_other_tree(ready, codes):
    assert faults(ready, starting=[asked(code) for code in codes]) == ["while it started"]


def test_a_prompt_that_is_not_on_the_graph_is_a_fault(ready):
    few = [{"on_graph": ready.PROMPTS - 1, "eager": {"too long": 1}}]
    assert faults(ready, counts=few) == ["every prompt ran on the graph"]


def test_prompts_grow_and_are_token_ids(ready):
    found = ready.prompts()
    assert [len(one) for one in found] == [40, 80, 120, 160, 200, 240]
    cases = importlib.import_module("cases")
    assert all(cases.SMALLEST <= token < cases.LARGEST for one in found for token in one)


def test_the_tree_is_asked_for_as_servers_log_it(ready, tmp_path):
    """The first run on a GPU asked for the hash of the files, and every server ran another tree."""
    folder = tmp_path / "tree/sglang/srt/prefill_graph"
    folder.mkdir(parents=True)
    (folder / "tree.sha256").write_text("00  python/sglang/version.py\n")
    place = importlib.import_module("launch").Place((tmp_path, tmp_path / "tree"), tmp_path)
    assert (
        ready._listing(place)
        == "sha256:" + hashlib.sha256(b"00  python/sglang/version.py\n").hexdigest()
    )
