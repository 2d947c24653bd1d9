"""update_weights_from_disk(recapture_cuda_graph=True): the release's own update, on a loader that
replaces the parameter.

Captures are stood in for. What they leave behind is the release's own: its backends, its compiled
stack, its pools.
"""

import contextlib
import gc
import importlib
import weakref
from types import SimpleNamespace

import pytest
import torch
from host import late, process, saver

MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
BACKENDS = "sglang.srt.model_executor.runner_backend"
POOLS = ("cuda_graph_runner", "piecewise_cuda_graph_runner", "runner_utils.pool")
VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, rows: torch.Tensor):
        return rows * self.weight


class Graph:
    """A CUDA graph of a forward: it goes on with the parameter that it was captured with."""

    def __init__(self, model):
        self.weight = model.weight.detach()

    def replay(self, rows):
        return rows * self.weight


def _new():
    """Whether prefill comes first, and a runner has a backend (from 0.5.14)."""
    return late.has(BACKENDS)


@pytest.fixture
def device(monkeypatch):
    """The GPU's module: what was asked of it, in order."""
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: seen.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append("empty cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    process.use_server_args(process.default_server_args())
    return seen


def server(device, monkeypatch, draft=False, speculative=False):
    """A ModelRunner with both graphs. `captures` notes further ones, and which old ones live."""
    module = importlib.import_module(MODEL_RUNNER)
    runner = object.__new__(module.ModelRunner)
    if issubclass(module.ModelRunner, torch.nn.Module):
        torch.nn.Module.__init__(runner)
    vars(runner).update(
        model=Model(),
        device="cuda",
        gpu_id=0,
        is_draft_worker=draft,
        captures=[],
        server_args=process.default_server_args(),
        model_config=SimpleNamespace(dtype=torch.float32),
        spec_algorithm=SimpleNamespace(is_none=lambda: not speculative),
        ps=SimpleNamespace(tp_rank=0),
        tp_rank=0,  # 0.5.21's has it itself
        eager_runner=None,
    )
    vars(runner)["update_model_fields"] = lambda model, **_: setattr(runner, "model", model)
    decode, prefill = (
        ("decode_cuda_graph_runner", "prefill_cuda_graph_runner")
        if _new()
        else ("graph_runner", "piecewise_cuda_graph_runner")
    )

    def capture(name):
        def run(**_):
            runner.captures.append((name, [old() is not None for old in runner.old]))
            setattr(runner, name, _runner_of_graphs(monkeypatch, runner.model))

        return run

    runner.old = []
    names = {
        "decode": "init_decode_cuda_graph" if _new() else "init_device_graphs",
        "prefill": "init_prefill_cuda_graph" if _new() else "init_piecewise_cuda_graphs",
    }
    vars(runner).update({names["decode"]: capture(decode), names["prefill"]: capture(prefill)})
    vars(runner)[names["decode"]]()
    vars(runner)[names["prefill"]]()
    runner.old = [
        weakref.ref(graph) for name in (decode, prefill) for graph in _graphs(getattr(runner, name))
    ]
    assert len(runner.old) == 2
    del runner.captures[:]
    runner.prefill_name, runner.decode_name = prefill, decode
    return runner


def _runner_of_graphs(monkeypatch, model):
    """Up to 0.5.13 a dict of graphs, then the release's own backend with one."""
    if not _new():
        return SimpleNamespace(graphs={8: Graph(model)}, output_buffers={8: torch.ones(8)})
    module = importlib.import_module(f"{BACKENDS}.breakable_cuda_graph_backend")
    monkeypatch.setattr(
        module, "get_parallel", lambda: SimpleNamespace(tp_group=None), raising=False
    )
    runner = SimpleNamespace(device_module=torch.cuda, model_runner=SimpleNamespace(tp_group=None))
    runner.backend = module.BreakableCudaGraphBackend(runner)
    runner.backend._graphs[8] = Graph(model)
    return runner


def _graphs(runner):
    return (runner.backend._graphs if _new() else runner.graphs).values()


def update(runner, monkeypatch, recapture=True):
    """The release's own; the loader binds a new parameter, as packing a quantised layer does."""
    module = importlib.import_module(UPDATER if late.has(UPDATER) else MODEL_RUNNER)

    class Loader(module.DefaultModelLoader):
        Source = SimpleNamespace(init_new=lambda config, model: None)

        def __init__(self):
            pass

        def _get_weights_iterator(self, source):
            return iter([("weight", torch.full((1,), 5.0))])

        @staticmethod
        def restore_weights_before_loading(model, target_device):
            pass

        @staticmethod
        def load_weights_and_postprocess(model, weights, target_device):
            for _, weight in weights:
                model.weight = torch.nn.Parameter(weight)

    monkeypatch.setattr(module, "DefaultModelLoader", Loader)
    monkeypatch.setattr(module, "get_model_loader", lambda *_: Loader())
    monkeypatch.setattr(module, "get_available_gpu_memory", lambda *_, **__: 80.0)
    monkeypatch.setattr(module, "get_pp_stage_load_group", lambda: None, raising=False)
    monkeypatch.setattr(
        module, "get_model", lambda: SimpleNamespace(weight_cache_mode="off"), raising=False
    )
    of = runner
    if module.__name__ == UPDATER:
        names = importlib.import_module(MODEL_RUNNER)
        monkeypatch.setattr(
            names, "get_model", lambda: SimpleNamespace(custom_weight_loader=[]), raising=False
        )
        monkeypatch.setattr(
            names, "get_parallel", lambda: SimpleNamespace(tp_rank=0), raising=False
        )
        runner.init_weight_updater()
        of = runner.weight_updater
    assert of.update_weights_from_disk("model", "auto", recapture_cuda_graph=recapture) == (
        True,
        "Succeeded to update model weights.",
    )


def replayed(runner):
    [graph] = _graphs(getattr(runner, runner.prefill_name))
    return graph.replay(torch.ones(4)).tolist()


def test_prefill_is_captured_with_decode_and_replays_the_new_weights(device, monkeypatch):
    """It replayed the old ones."""
    runner = server(device, monkeypatch)
    update(runner, monkeypatch)
    order = [runner.decode_name, runner.prefill_name]
    assert [name for name, _ in runner.captures] == (order[::-1] if _new() else order)
    assert replayed(runner) == [5.0] * 4


def test_the_old_graphs_are_gone_before_the_first_capture(device, monkeypatch):
    """Even where somebody holds their runners, or the collector is not allowed to see them."""
    runner = server(device, monkeypatch)
    others = [getattr(runner, name) for name in (runner.decode_name, runner.prefill_name)]
    gc.collect()
    gc.freeze()
    try:
        update(runner, monkeypatch)
    finally:
        gc.unfreeze()
    assert runner.captures[0][1] == [False, False]
    assert device[:2] == ["synchronize", "empty cache"] and others


def test_an_update_without_a_recapture_leaves_graphs_alone(device, monkeypatch):
    runner = server(device, monkeypatch)
    update(runner, monkeypatch, recapture=False)
    assert runner.captures == [] and device == [] and replayed(runner) == [1.0] * 4


def test_drafts_keep_what_their_worker_captured(device, monkeypatch):
    runner = server(device, monkeypatch, draft=True)
    update(runner, monkeypatch)
    assert [name for name, _ in runner.captures] in ([runner.decode_name], [])
    assert replayed(runner) == [1.0] * 4


@pytest.mark.parametrize("speculative", [False, True], ids=["alone", "with drafts"])
def test_a_pool_is_named_again_only_where_drafts_hold_it(device, monkeypatch, speculative):
    """torch ends the process at a capture in a pool that no graph holds, and some tensor does."""
    there = [
        importlib.import_module(f"sglang.srt.model_executor.{name}")
        for name in POOLS
        if late.has(f"sglang.srt.model_executor.{name}")
    ]
    there = [module for module in there if hasattr(module, "set_global_graph_memory_pool")]
    assert there
    for module in there:
        module.set_global_graph_memory_pool((0, 3))
    try:
        update(server(device, monkeypatch, speculative=speculative), monkeypatch)
        assert {module.get_global_graph_memory_pool() for module in there} == {
            (0, 3) if speculative else None
        }
    finally:
        for module in there:
            module.set_global_graph_memory_pool(None)


def test_paused_memory_is_freed_in_its_region(device, monkeypatch):
    stand_in = saver.Saver()
    runner = server(device, monkeypatch)
    stand_in.install(monkeypatch)
    monkeypatch.setenv(VARIABLE, "1")
    process.use_server_args(process.default_server_args(enable_memory_saver=True))
    update(runner, monkeypatch)
    assert stand_in.library.freed_inside == [True, False]


def compiled(monkeypatch, model):
    """The release's own compiled stack. Returns what its pieces hold, weakly."""
    module = importlib.import_module("sglang.srt.compilation.compile")
    for name in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph"):
        monkeypatch.setattr(module, name, lambda: True, raising=False)
    held = []

    def backend(traced, _):
        graph = Graph(model)
        held.append(weakref.ref(graph))

        def run(*inputs):
            [rows] = [one for one in inputs if type(one) is torch.Tensor]
            return [graph.replay(rows)]

        return run

    module.install_torch_compiled(model, backend_factory=backend)
    flag = getattr(module, "set_compiled", contextlib.nullcontext)
    with torch.no_grad(), flag(True):
        result = model(torch.ones(4))
    return held, result


def test_the_compiled_stack_is_let_go_and_made_anew(device, monkeypatch):
    """Its pieces hold the piecewise graph, and torch holds them in two places."""
    runner = server(device, monkeypatch)
    model = runner.model
    held, result = compiled(monkeypatch, model)
    assert result.tolist() == [1.0] * 4 and held[0]() is not None
    update(runner, monkeypatch)
    assert held[0]() is None and "forward" not in vars(model)
    assert model(torch.ones(4)).tolist() == [5.0] * 4
    held, result = compiled(monkeypatch, model)
    assert result.tolist() == [5.0] * 4 and held[0]() is not None
