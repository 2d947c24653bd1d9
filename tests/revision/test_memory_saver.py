"""A server whose memory saver pauses graphs, as RL trainers start it: the release's set-up and backend, captures stood in for."""

import importlib
import logging
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
FULL = pytest.mark.revision(">=0.5.16")  # where another backend captures the prefill
VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"
BACKEND = "sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend"


@pytest.fixture
def set_up(build_model, monkeypatch, caplog):
    """set_up(backend, …): whether the release captures a model's prefill, and its warnings. The backend is the release's own."""
    from host import prefill
    from sglang.srt.utils import torch_memory_saver_adapter as adapter

    monkeypatch.setattr(adapter, "_memory_saver", SimpleNamespace(enabled=True))  # it is, where a GPU is
    monkeypatch.setattr(adapter, "import_error", None)
    module, resolve = importlib.import_module(BACKEND), prefill.resolve
    monkeypatch.setattr(module, "get_parallel", lambda: SimpleNamespace(tp_group=None), raising=False)

    def capture(model, backend):
        found = resolve(model, backend)
        if backend == "breakable":
            runner = SimpleNamespace(device_module=None, model_runner=SimpleNamespace(tp_group=None))
            module.BreakableCudaGraphBackend(runner, enable_memory_saver=saver)
        return found

    monkeypatch.setattr(prefill, "resolve", capture)
    saver = True

    def run(backend="breakable", enable_memory_saver=True, **more):
        nonlocal saver
        saver = enable_memory_saver
        caplog.clear()
        arguments = dict(enable_memory_saver=saver)
        found = prefill.capture(build_model("llama"), backend, layers=4, arguments=arguments, **more)
        warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and one.name.startswith("sglang.srt.prefill_graph")]
        return getattr(found, "runner", found) is not None, warned

    return run


def test_prefill_stays_eager_and_one_warning_names_the_variable(set_up, monkeypatch):
    """The server died at start: "Breakable CUDA graph is not compatible with memory saver mode"."""
    monkeypatch.setenv(VARIABLE, "1")
    captured, [text] = set_up()
    assert not captured and VARIABLE in text and "Prefill runs eagerly" in text


@pytest.mark.parametrize("more", [dict(tp_rank=1), dict(draft=True)], ids=["another rank", "a draft"])
def test_nobody_says_it_twice(set_up, monkeypatch, more):
    monkeypatch.setenv(VARIABLE, "true")
    assert set_up(**more) == (False, [])


@pytest.mark.parametrize("value", [None, "0", "false"])
def test_without_the_variable_prefill_is_captured(set_up, monkeypatch, value):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert set_up() == (True, [])
    assert set_up(draft=True) == (True, [])


def test_without_a_memory_saver_prefill_is_captured(set_up, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    assert set_up(enable_memory_saver=False) == (True, [])


@FULL
def test_another_backend_is_left_alone(set_up, monkeypatch):
    """The full graph can be paused."""
    monkeypatch.setenv(VARIABLE, "1")
    assert set_up("full") == (True, [])
