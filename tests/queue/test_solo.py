"""tests/gpu/solo.py: a script that asks one engine, from its words to its exit code, without the
engine."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).parents[1] / "gpu"
LOG = "Capture cuda graph end. Time elapsed: 4.00 s. mem usage=0.10 GB. avail mem=60.00 GB."


class Host:
    """What stands for the GPU host. answered: what the engine writes, None where it dies; ran: what
    was done, in order."""

    def __init__(self, monkeypatch, answered: dict | None) -> None:
        monkeypatch.syspath_prepend(str(GPU))
        for file in GPU.glob("*.py"):
            monkeypatch.delitem(sys.modules, file.stem, raising=False)
        self.solo, self.answered, self.ran = importlib.import_module("solo"), answered, []
        machine, commandline = self.solo.machine, self.solo.commandline
        monkeypatch.setattr(machine, "describe", lambda place, options: {"tag": "v9.9.1"})
        monkeypatch.setattr(machine, "visible", lambda: [SimpleNamespace(use="0")])
        monkeypatch.setattr(self.solo.kernels, "make", lambda *_: self.ran.append("kernels"))
        monkeypatch.setattr(commandline, "untouched_place", self._untouched)
        monkeypatch.setattr(self.solo.subprocess, "run", self._models)
        monkeypatch.setattr(self.solo.launch, "run_all", self._run_all)

    def _untouched(self, place, options):
        self.ran.append(f"untouched of {options.untouched}")
        return place

    def _models(self, words, **_):
        self.ran.append(f"model {words[-1]}")

    def _run_all(self, place, jobs, *_, **__):
        [one] = jobs
        self.ran.append(f"{one.script.name} on port {one.plan['port']}")
        (place.out / f"{one.name}.log").write_text(LOG if self.answered else "RuntimeError: none")
        one.code, one.why = (0, "") if self.answered else (1, "exit code 1")
        if self.answered:
            Path(one.plan["out"]).write_text(json.dumps(self.answered))

    def main(self, out: Path, *more: str, **words: object) -> tuple[int, dict]:
        """The exit code of a question that wants `right`, and what was written."""
        question = self.solo.Question("some_answer", "llama", words, 31000, self._judged)
        code = self.solo.main(question, "Ask.", ["--out", str(out), *more])
        return code, json.loads((out / "some_answer.json").read_text())

    def _judged(self, result, control):
        why = f"{result['captured'][0]['what']}, control: {control}"
        return [self.solo.compare.Verdict("it is right", result["right"] != control, why)]


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_an_answer_is_judged_with_its_log_and_written(monkeypatch, tmp_path, capsys, right, code):
    host = Host(monkeypatch, {"right": right})
    assert host.main(tmp_path, "--port-base", "45000")[0] == code
    assert host.ran == ["model llama", "kernels", "some_answer_engine.py on port 45000"]
    written = json.loads((tmp_path / "some_answer.json").read_text())
    assert written["tag"] == "v9.9.1" and written["without"] == ""
    assert [check["good"] for check in written["checks"]] == [right]
    said = f"{'ok  ' if right else 'FAIL'} it is right: cuda graph, control: False\n"
    assert capsys.readouterr().out == said


def test_a_control_runs_the_releases_own_tree(monkeypatch, tmp_path):
    host = Host(monkeypatch, {"right": False})
    code, written = host.main(tmp_path, "--without", "queue", "--untouched", "own")
    assert code == 0 and written["without"] == "queue"
    assert host.ran[0] == "untouched of own" and host.ran[-1].endswith("on port 31000")
    assert (tmp_path / "some-answer.queue.json").is_file()


def test_an_engine_that_dies_is_the_one_fault(monkeypatch, tmp_path):
    code, written = Host(monkeypatch, None).main(tmp_path)
    assert code == 1
    [check] = written["checks"]
    assert check["what"] == "the engine answered" and not check["good"]
    assert check["why"] == "exit code 1 RuntimeError: none"


def test_kernels_are_compiled_for_flashinfer_alone(monkeypatch, tmp_path):
    host = Host(monkeypatch, {"right": True})
    host.main(tmp_path, attention_backend="triton")
    assert "kernels" not in host.ran


def test_an_engine_script_writes_what_it_asked_and_saw(monkeypatch, tmp_path):
    """solo_engine.py: the end that runs in the engine's own process."""
    Host(monkeypatch, None)
    side, ended = importlib.import_module("solo_engine"), []
    engine = SimpleNamespace(shutdown=lambda: ended.append((tmp_path / "a.json").is_file()))
    monkeypatch.setattr(side.engines, "start", lambda plan: (engine, {"start_s": 1.0}))
    monkeypatch.setattr(side.engines, "watched", lambda pattern: [{"mode": pattern}])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"out": str(tmp_path / "a.json"), "watch": "seen"}))
    monkeypatch.setattr(sys, "argv", ["some_engine.py", str(plan)])
    side.main(lambda asked: {"same": asked is engine})
    written = json.loads((tmp_path / "a.json").read_text())
    assert written == {"start_s": 1.0, "same": True, "prefills": [{"mode": "seen"}]}
    assert (tmp_path / "a.json.ready").is_file() and ended == [True], "written before it ends"
