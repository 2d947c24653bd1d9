"""What tests/gpu's questions ask one engine, and what they take of its answers."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import gpumodules
import pytest
import questions

MIXED = [{"mode": "MIXED"}] * 40 + [{"mode": "EXTEND"}] * 10
SERVERS = {
    "next_turn": questions.Decoded,
    "mixed_states": questions.Mixed,
}
CONTROL = "answers otherwise without queue, as it must"
# the name of a question, the words of its server, and what is at fault there
FAULTS = [
    ("next_turn", {"forgets": True}, "next turns answer as without a cache"),
    ("mixed_states", {"forgets": True}, "shared beginnings answer as without a cache"),
]


@pytest.fixture
def load(monkeypatch):
    """A question's module."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
    return lambda name: gpumodules.load(monkeypatch, name)


def asked(question, server, prefills=MIXED) -> dict:
    """What an engine's process writes of a server. The larger questions take seconds."""
    return question.asked(server, {}) | {"prefills": prefills}


def faults(question, result: dict, control: bool = False) -> dict[str, str]:
    """What is judged to be wrong, and why."""
    found = question.judged(result, control)
    return {check.what: check.why for check in found if not check.good}


@pytest.mark.parametrize(("name", "words", "wrong"), FAULTS)
def test_a_right_server_is_good_and_a_wrong_one_what_a_control_must_show(load, name, words, wrong):
    question, kind = load(name), SERVERS[name]
    right, broken = asked(question, kind()), asked(question, kind(**words))
    assert [*faults(question, right)] == [] and [*faults(question, broken)] == [wrong]
    assert [*faults(question, broken, control=True)] == []
    assert [*faults(question, right, control=True)] == [CONTROL]


def test_what_shows_nothing_is_a_fault(load):
    for name, words, prefills, wrong in (
        ("next_turn", {"keeps": 20}, MIXED, "next turns went on from decoded states"),
        ("mixed_states", {}, MIXED[-1:], "long prompts were prefilled beside decoding requests"),
    ):
        question = load(name)
        assert [*faults(question, asked(question, SERVERS[name](**words), prefills))] == [wrong]


@pytest.mark.parametrize(("version", "starts"), [("0.5.6.post2", [3, 1]), ("0.5.7", [4, 2])])
def test_log_probabilities_begin_where_a_release_allows(load, version, starts, monkeypatch):
    """0.5.6 refuses a start behind the prompt."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__=version))
    assert load("engine").starts([[1, 2, 3, 4], [5, 6]]) == starts


def test_an_engine_script_writes_what_it_asked_and_saw(load, monkeypatch, tmp_path):
    """engine.py: the end that runs in the engine's own process."""
    side, ended = load("engine"), []
    engine = SimpleNamespace(shutdown=lambda: ended.append((tmp_path / "a.json").is_file()))
    monkeypatch.setattr(side, "start", lambda plan: (engine, {"start_s": 1.0}))
    monkeypatch.setattr(side, "watched", lambda pattern: [{"mode": pattern}])
    question = SimpleNamespace(asked=lambda asked, plan: {"same": asked is engine})
    monkeypatch.setitem(sys.modules, "some_question", question)
    plan = tmp_path / "plan.json"
    told = {"out": str(tmp_path / "a.json"), "watch": "seen", "question": "some_question"}
    plan.write_text(json.dumps(told))
    monkeypatch.setattr(sys, "argv", ["engine.py", str(plan)])
    side.main()
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {"start_s": 1.0, "same": True, "prefills": [{"mode": "seen"}]}
    assert (tmp_path / "a.json.ready").is_file() and ended == [True], "written before it ends"
