"""The table of run.py's experiments: each row from its words to what it writes."""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import fakes
import gpumodules
import pytest
import test_asleep
import test_judged
from gpumodules import GPU

LOG = "Capture cuda graph end. Time elapsed: 4.00 s. mem usage=0.10 GB. avail mem=60.00 GB."
LIST = "import experiments; print(*experiments.EXPERIMENTS)"
ROWS = fakes.run(sys.executable, "-c", LIST, cwd=GPU, check=True).stdout.split()
SERVERS = test_judged.SERVERS
KNOWN = {"tp_size", "dp_size", "enable_dp_attention", "enable_return_routed_experts"}
KNOWN |= {"enable_return_hidden_states", "enable_mixed_chunk", "context_length"}
KNOWN |= {"json_model_override_args"}
KNOWN |= {"chunked_prefill_size", "disable_piecewise_cuda_graph", "enable_breakable_cuda_graph"}


class Host:
    """What stands for the GPU host. dies: whether its engines do; ran: what was done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies: bool = False) -> None:
        monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.16"))
        self.run, self.dies, self.ran = gpumodules.load(monkeypatch, "run"), dies, []
        facts = {"tag": "v0.5.16", "version": "0.5.16", "queue": "", "patches": []}
        facts |= {"gpu": {"name": "H", "driver": "1"}, "torch": {"version": "2"}}
        gpus = [self.run.machine.Gpu(str(n), "H", "1", 1, "9.0") for n in range(2)]
        run = self.run
        for module, name, stand_in in (
            (run.machine, "describe", lambda place, options: facts),
            (run.machine, "visible", lambda: gpus),
            (run.commandline, "fields", lambda options: KNOWN),
            (run.commandline, "untouched_place", self._untouched),
            (run.kernels, "made_ahead", lambda *_: contextlib.nullcontext([])),
            (run.launch, "run_all", self._run_all),
        ):
            monkeypatch.setattr(module, name, stand_in)
        monkeypatch.setattr(importlib.import_module("experiment"), "make_models", self._models)

    def _untouched(self, place, options):
        self.ran.append(f"untouched of {options.untouched}")
        return place

    def _models(self, place, names) -> None:
        for name in names:
            folder = place.scratch / "models" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.safetensors").touch()
        self.ran.append(f"models {' '.join(names)}")

    def _run_all(self, place, jobs, width, deadline, say, **words) -> None:
        for job in jobs:
            self.ran.append(f"{job.script.name} on port {job.plan['port']}")
            log = place.out / f"{job.name}.log"
            log.write_text("RuntimeError: none" if self.dies else LOG)
            job.code, job.why = (1, "exit code 1") if self.dies else (0, "")
            if not self.dies:
                Path(job.plan["out"]).write_text(json.dumps(answered(job)))

    def main(self, out: Path, *words: str) -> tuple[int, dict]:
        """The exit code of a row, and what was written of it."""
        code = self.run.main([*words, "--out", str(out)])
        return code, json.loads((out / f"{words[0]}.json").read_text())


def answered(job) -> dict:
    """What an engine writes that answers a job rightly."""
    made = {"start_s": 1.0, "pass_s": {}, "flags": {}, "dropped_flags": [], "report": None}
    question = job.plan.get("question", "")
    if question in SERVERS:
        asked = importlib.import_module(question).asked(SERVERS[question](), job.plan)
        return made | asked | {"prefills": [{"mode": "MIXED"}] * 40}
    if question == "asleep":
        return made | test_asleep.engine(job.plan["steps"])
    if question == "images":
        images = importlib.import_module("images")
        replayed = {images.TEXT} if "breakable" in job.name else ()
        return made | test_judged.image_engine(images, replayed)
    cases = importlib.import_module("cases")
    names = job.plan.get("passes") or cases.passes(job.plan["mode"])
    return made | {"passes": {name: passed(cases.of_pass(name)) for name in names}, "prefills": []}


def passed(calls) -> dict:
    """A pass: every prompt has an answer of its own."""

    def one(prompt: tuple[int, ...], count: int) -> dict:
        tokens = [sum(prompt) % 997 + number for number in range(count)]
        best = [[-1.0, -9.0]] * count
        return {"tokens": tokens, "logprobs": [-1.0] * count, "best": best, "cached": 0}

    answers = {call.name: [one(each, call.new_tokens) for each in call.prompts] for call in calls}
    return {name: {"from": 1.0, "to": 2.0, "answers": each} for name, each in answers.items()}


# judged by what the watch saw, which no stand-in has
WATCHED = {"plain", "context-flag", "context-config", "returns", "mixed-chunk", "extra-buffer"}
WATCHED |= {"dp-attention", "dp-returns"}


@pytest.mark.parametrize("name", [row for row in ROWS if row != "proof"])
def test_each_row_starts_its_engines_judges_and_writes(monkeypatch, tmp_path, capsys, name):
    host = Host(monkeypatch)
    code, written = host.main(tmp_path, name)
    row, runs = host.run.experiments.EXPERIMENTS[name], written["runs"]
    assert (written["experiment"], written["tag"], written["without"]) == (name, "v0.5.16", "")
    assert {run["experiment"] for run in runs} == {name}
    assert {run["model"] for run in runs} == {*row.models}
    assert written["checks"] and all(run["checks"] for run in runs)
    is_failed = "failed" in {run["verdict"] for run in runs}
    assert is_failed is (name in WATCHED), written["checks"]
    assert code == int(is_failed) and written["passed"] is (code == 0)
    said = capsys.readouterr().out
    assert all(check["what"] in said for check in written["checks"])
    ports = [int(done.rpartition(" ")[2]) for done in host.ran if " on port " in done]
    assert ports and ports == [row.port + 20 * number for number in range(len(ports))]


@pytest.mark.parametrize("name", [row for row in ROWS if row != "proof"])
def test_engines_that_die_fail_each_row(monkeypatch, tmp_path, name):
    code, written = Host(monkeypatch, dies=True).main(tmp_path, name)
    assert code == 1
    for run in written["runs"]:
        assert run["verdict"] in ("failed", "not run")
        assert "exit code 1" in run["why"] and "RuntimeError" in run["why"]


def test_a_control_runs_the_releases_own_tree(monkeypatch, tmp_path):
    host = Host(monkeypatch)
    words = ("--without", "queue", "--untouched", "own")
    code, written = host.main(tmp_path, "next_turn", *words)
    assert code == 1 and written["without"] == "queue"
    assert written["checks"][-1]["what"] == "answers otherwise without queue, as it must"
    assert host.ran[0] == "untouched of own" and host.ran[-1].endswith("on port 30000")
    assert (tmp_path / "next-turn.nemotron-h-buffer.queue.json").is_file()


def test_rows_that_may_run_beside_each_other_do(monkeypatch, tmp_path):
    host, seen = Host(monkeypatch), []
    noted = lambda place, jobs, *_, **__: seen.append([*jobs])  # noqa: E731
    monkeypatch.setattr(host.run.launch, "run_all", noted)
    host.main(tmp_path, "context-flag", "next_turn", "context-config")
    names = [{job.name.partition(".")[0] for job in jobs} for jobs in seen]
    assert names == [{"context-flag", "context-config"}, {"next-turn"}]


def test_nothing_is_compiled_beside_an_engine_that_is_alone(monkeypatch, tmp_path):
    """One that sleeps says how much memory is in use on the whole GPU."""
    host = Host(monkeypatch)
    compiling = contextlib.ExitStack()
    compiling.callback(host.ran.append, "ended")
    monkeypatch.setattr(host.run.kernels, "made_ahead", lambda *_: compiling)
    monkeypatch.setattr(host.run.kernels, "wait", lambda *_: None)
    host.main(tmp_path, "next_turn")
    assert host.ran[-2] == "ended" and " on port " in host.ran[-1]


def test_a_run_of_no_model_does_not_pass(monkeypatch, tmp_path):
    host = Host(monkeypatch)
    lacks = {"the release lacks them": ["llama"]}
    monkeypatch.setattr(host.run.experiments.proof, "left_out", lambda *_: lacks)
    with pytest.raises(SystemExit, match="no model is left"):
        host.main(tmp_path, "proof", "--model", "llama")


@pytest.mark.parametrize("words", [("run.py", "--list"), ("gain.py", "--help")])
def test_the_runners_need_the_standard_library_alone(words):
    """A host may have nothing but a bundle, whose packages its engines have."""
    script, *more = words
    done = fakes.run(sys.executable, "-I", "-S", GPU / script, *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ROWS)
def test_a_row_takes_its_ports_from_where_it_is_told(monkeypatch, name):
    run = gpumodules.load(monkeypatch, "run")
    row = run.experiments.EXPERIMENTS[name]
    assert run.parse([name, "--out", "results"]).port_base == row.port
    options = run.parse([name, "--out", "results", "--port-base", "45000"])
    assert options.port_base == 45000 and options.untouched is None
    assert run.parse([name, "--out", "r", "--untouched", "own"]).untouched == Path("own")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense: is no experiment; --list shows them"),
        (["images", "--model", "llama"], "--model: images does not take it"),
        (["proof", "--tp", "2"], "--tp: proof does not take it"),
        (["agree", "--without", "queue"], "--without: agree has no control"),
        (["next_turn", "--without", "all"], "--without: next_turn has one of queue"),
        ([], "the following arguments are required: --out"),
    ],
)
def test_wrong_words_are_refused(monkeypatch, capsys, words, said):
    run = gpumodules.load(monkeypatch, "run")
    with pytest.raises(SystemExit):
        run.parse([*words, *(["--out", "there"] if words else [])])
    assert said in capsys.readouterr().err


def test_two_gpus_are_given_to_each_server_that_needs_them(monkeypatch):
    run = gpumodules.load(monkeypatch, "run")
    job = run.launch.Job
    jobs = [job(name, Path("x"), {"gpus": count}, 1) for name, count in (("a", 1), ("b", 2))]
    one, two = run.by_gpus(jobs, ["0", "1", "2"])
    assert one == (["0", "1", "2"], [jobs[0]]) and two == (["0,1"], [jobs[1]])
    assert run.by_gpus(jobs, ["0"]) == [(["0"], [jobs[0]])]
    assert jobs[1].why == "it needs 2 GPUs, 1 can be used"
