"""The record of why a prefill graph is on or off: its causes, its line, its file, its command."""

import dataclasses
import importlib
import inspect
import json
import logging
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late, logged, prefill, process
from host import runner as host_runner

with late.modules():
    from sglang.srt import server_args
    from sglang.srt.managers import tp_worker
    from sglang.srt.model_executor import cuda_graph_config
    from sglang.srt.prefill_graph.compat import prefill_config
    from sglang.srt.prefill_graph.report import provenance, records, schedulers, verdict

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.24")
OLD = pytest.mark.revision("<0.5.14")
NEW = pytest.mark.revision(">=0.5.14")


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """A runtime folder of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def explained(model, **changes):
    """The verdict after the release's own decision."""
    return verdict.explain(host_runner.decide(model, **changes))


def judged(model, **changes):
    """The verdict after the release's own set-up, from 0.5.14 on."""
    found = []
    given = {"layers": 4, "eager_runner": object(), **changes}
    prefill.capture(model, **given, then=lambda runner: found.append(verdict.explain(runner)))
    return found[0]


@pytest.fixture
def llama(build_model):
    return build_model("llama")


def opt_in():
    return "enable_piecewise_cuda_graph" in server_args.ServerArgs.__dataclass_fields__


@OLD
def test_the_flag(llama):
    flag = "enable" if opt_in() else "disable"
    verdict = explained(llama, **{f"{flag}_piecewise_cuda_graph": not opt_in()})
    assert verdict.verdict == "off" and f"--{flag}-piecewise-cuda-graph" in verdict.reason


RULES = {
    "torch compile": (dict(enable_torch_compile=True), "enable_torch_compile"),
    "pipeline": (dict(pp_size=2), "pp_size > 1"),
    "data parallel attention": (dict(enable_dp_attention=True), "self.enable_dp_attention"),
    "LoRA": (dict(enable_lora=True), "self.lora_paths or self.enable_lora"),
    "offload": (dict(cpu_offload_gb=4), "self.cpu_offload_gb > 0"),
}


@OLD
@pytest.mark.parametrize("rule", RULES)
def test_the_releases_own_rule_is_named(rule, llama, monkeypatch):
    """The rule that this release applied, not a list of what may have been."""
    changes, condition = RULES[rule]
    if opt_in() and rule not in ("torch compile", "pipeline"):
        pytest.skip("no rule of this release")
    if not opt_in():
        for name in ("is_hip", "is_npu", "is_cpu", "is_mps", "is_xpu"):
            if hasattr(server_args, name):
                monkeypatch.setattr(server_args, name, lambda: False)
        args = process.by_rules(**changes)
        assert args.disable_piecewise_cuda_graph
        changes |= dict(disable_piecewise_cuda_graph=True)
    verdict = explained(llama, **changes)
    assert verdict.verdict == "off"
    assert verdict.reason.startswith("turned off by the release's own rule: "), verdict.reason
    assert condition in verdict.reason and verdict.reason.count(";") == 0, verdict.reason


@OLD
@pytest.mark.parametrize("index, attention", [(2, None), (1, torch.nn.Linear)])
def test_a_layer_that_cannot_be_captured_is_named(llama, index, attention):
    layer = llama.model.layers[index]
    del layer.self_attn
    if attention:
        layer.self_attn = attention(2, 2)
    verdict = explained(llama)
    assert verdict.verdict == "off"
    assert f"layer {index} (LlamaDecoderLayer): " in verdict.reason


@pytest.mark.revision(">=0.5.10")
def test_no_layers_at_all():
    explain = judged if late.has(prefill.RUNNER) else explained
    verdict = explain(SimpleNamespace(model=SimpleNamespace()))
    assert verdict.verdict == "off"
    assert "no decoder layers in the model (SimpleNamespace)" in verdict.reason


@OLD
@pytest.mark.revision(">=0.5.12")
def test_a_breakable_graph_that_never_runs_is_off():
    runner = SimpleNamespace(
        piecewise_cuda_graph_runner=SimpleNamespace(layer_model=None, capture_num_tokens=[64])
    )
    assert verdict.explain(runner).verdict == "off"


MODEL_RUNNER = "sglang.srt.model_executor.model_runner"


def lines_of(caplog):
    return logged.texts(caplog, loggers="sglang.srt.prefill_graph")


def reported(model, tp_rank=0, draft=False):
    """The record of a model runner as the release leaves it behind, with its graph."""

    def report(runner):
        runner.is_draft_worker = draft
        found.append(verdict.report_prefill_graph(runner))

    found = []
    host_runner.set_up(model, report, tp_rank=tp_rank)
    return found[0]


def test_one_line_from_the_first_rank_and_a_record_from_each(llama, caplog):
    with caplog.at_level(logging.INFO):
        record = reported(llama)
        [line] = lines_of(caplog)
        assert records.read_all() == [record] and record.ranks["tp"] == 0
        other = reported(llama, tp_rank=1)
        assert records.read_all() == [other] and other.ranks["tp"] == 1
        assert (other.sizes, other.tree) == ((64, 128), provenance.tree_hash())
        assert reported(llama, draft=True) is None
    assert lines_of(caplog) == [line]
    assert line.startswith(
        f"Prefill graph on ({record.feature}): captured 2 sizes, 64 to 128 tokens. Tree: sglang "
    )


@OLD
def test_the_runner_reports_after_it_has_decided(llama, monkeypatch):
    """In the release's own code: behind the statement that decides, and nowhere else."""
    module = importlib.import_module(MODEL_RUNNER)
    source = inspect.getsource(module.ModelRunner)
    assert source.count("report_prefill_graph(self)") == 1
    lines = [line.strip() for line in source.splitlines()]
    before = lines[lines.index("report_prefill_graph(self)") - 1]
    assert before in (
        "self.init_piecewise_cuda_graphs()",
        "self.piecewise_cuda_graph_runner = None",  # 0.5.5, whose __init__ decides
    )


@NEW
def test_the_worker_reports_after_it_has_captured(monkeypatch):
    """The release's own worker, of one model runner and of a draft's."""
    called = []
    monkeypatch.setattr(tp_worker, "report_prefill_graph", called.append)
    captured = SimpleNamespace(init_cuda_graphs=lambda **_: called.append("captured"))
    worker = SimpleNamespace(model_runner=captured, model_runner_list=[captured])
    tp_worker.TpModelWorker.init_cuda_graphs(worker)
    assert called == ["captured", captured]


@NEW
def test_captured_from_14(llama):
    """The piecewise graph holds the whole model: the release's runner names no stack for it."""
    verdict = judged(llama, sizes=[64, 128], backend="tc_piecewise")
    assert (verdict.verdict, verdict.reason) == ("on", "captured 2 sizes, 64 to 128 tokens")


@NEW
@pytest.mark.parametrize("locked", [False, True], ids=["by a rule", "by an argument"])
def test_a_disabled_backend_is_told(llama, locked):
    marks = {("prefill", "backend")} if locked else set()
    verdict = judged(llama, backend="disabled", arguments=dict(_cuda_graph_config_locked=marks))
    assert verdict.verdict == "off"
    assert ("--cuda-graph-backend-prefill disabled" in verdict.reason) is locked
    assert ("a rule of the release" in verdict.reason) is not locked


@NEW
def test_the_releases_own_rule_is_named_from_14(monkeypatch):
    """Its list is read, and what it does with it is not done: nothing is turned off again."""
    args, names = process.default_server_args(moe_a2a_backend="nixl"), {}
    for backend in ("breakable", "tc_piecewise"):
        made = SimpleNamespace(prefill=SimpleNamespace(backend=backend))
        monkeypatch.setattr(cuda_graph_config, "default_cuda_graph_config", lambda made=made: made)
        names[backend] = prefill_config.rules_that_hold(args)
        assert made.prefill.backend == backend
    assert any("a2a" in name.lower() for found in names.values() for name in found), names


@NEW
def test_a_setup_that_refuses_is_told(llama):
    verdict = judged(llama, sizes=[])
    assert verdict.verdict == "off"
    assert verdict.reason.startswith("turned off by the release's own rule: not "), verdict.reason
    assert "prefill.bs" in verdict.reason and "is_draft_worker" not in verdict.reason


def test_a_report_that_fails_harms_nothing(caplog):
    with caplog.at_level(logging.INFO):
        assert verdict.report_prefill_graph(SimpleNamespace()) is None
    [line] = lines_of(caplog)
    assert "the report failed (AttributeError" in line


def test_a_verdict_that_fails_still_tells_the_tree(llama, monkeypatch):
    """A readiness probe waits for the record."""

    def fail(_):
        raise ValueError("no idea")

    monkeypatch.setattr(verdict, "explain", fail)
    record = reported(llama)
    assert (record.verdict, record.tree) == ("unknown", provenance.tree_hash())
    assert record.reason == "the report failed (ValueError: no idea)"


@pytest.fixture
def record():
    pid = os.getpid()
    return records.Record(
        feature="a graph",
        verdict="off",
        reason="a reason",
        model="a/model",
        made_of="sglang 1, queue release 2, 3 patches",
        pid=pid,
        started=schedulers.started_at(pid),
        ranks={"tp": 1, "pp": 0},
        sizes=(64, 128),
        on_graph=3,
        eager={"few": 1, "many": 20},
        written=time.time() - 2,
        tree="sha256:abc",
    )


def test_the_record_is_kept_for_its_owner(record, runtime):
    path = records.write(record)
    assert path == runtime / f"sglang-prefill-graph-{os.getuid()}" / f"{os.getpid()}.json"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert records.read_all() == [record]


def test_records_of_gone_processes_are_ignored_and_removed(record):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = records.write(dataclasses.replace(record, pid=gone.pid, started=None))
    # this pid, but an earlier process
    reused = records.write(dataclasses.replace(record, started=1))
    assert records.read_all() == []
    records.sweep()
    assert not left.exists() and not reused.exists()
    records.write(record)
    (reused.parent / "1.json").write_text("not a record")
    assert records.read_all() == [record]


def test_a_record_of_another_release_of_the_queue_is_read(record):
    """It was no record to this one, and the next server that started removed it."""
    path = records.write(record)
    values = json.loads(path.read_text())
    del values["eager"], values["sizes"], values["tree"]
    path.write_text(json.dumps({**values, "of_later": {"a": 1}}))
    [found] = records.read_all()
    assert found == dataclasses.replace(record, eager={}, sizes=(), tree="")
    records.sweep()
    assert path.exists()


def test_a_folder_that_is_not_ours_is_left_alone(record, runtime, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    records.folder().symlink_to(elsewhere)
    assert records.write(record) is None
    assert records.read_all() == []
    assert not list(elsewhere.iterdir())
    records.folder().unlink()
    records.folder().mkdir(mode=0o777)
    records.folder().chmod(0o777)
    assert records.write(record) is None and records.read_all() == []
    records.folder().rmdir()
    records.folder().write_text("a file")
    assert records.write(record) is None and records.read_all() == []


def command(runtime, *words):
    done = interpreted.call("sglang.srt.prefill_graph", *words, XDG_RUNTIME_DIR=str(runtime))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_prints_the_tree_and_every_server(record, tree, revision, runtime):
    records.write(record)
    provenance = json.loads((tree / "python/sglang/srt/prefill_graph/provenance.json").read_text())
    text = command(runtime).splitlines()
    assert (
        text[0] == f"this tree: sglang {revision}, queue release {provenance['release']},"
        f" {len(provenance['patches'])} patches"
    )
    assert "  prefill-graph/report-verdict" in "\n".join(text[1:])
    block = text[text.index(f"server process {record.pid}: a/model") :]
    assert "off (a graph)" in block[2] and block[3].endswith("a reason")
    assert [line.split() for line in block[7:9]] == [["20", "many"], ["1", "few"]]
    printed = json.loads(command(runtime, "--json"))
    assert printed["servers"] == [json.loads(json.dumps(dataclasses.asdict(record)))]
    assert printed["tree"]["queue"] == provenance["queue"]


def test_a_scheduler_is_known_by_the_name_that_the_release_gives_it():
    """As `--require` looks for it (tests/queue/test_requirement.py)."""
    source = inspect.getsource(importlib.import_module("sglang.srt.managers.scheduler"))
    assert f'setproctitle.setproctitle(f"{schedulers.TITLE}' in source
