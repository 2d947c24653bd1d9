"""A server whose memory saver pauses graphs, as RL trainers start it: what the prefill graph's
captures put in its region.

The package's own Python runs, and the release's: only the saver's library and the GPU's allocator
are stood in for.
"""

import contextlib
import gc
import importlib
import logging
from types import SimpleNamespace

import pytest
import torch
from host import device, process, saver

BREAKABLE = pytest.mark.revision(">=0.5.9")  # before 0.5.11 the overlay's own
OWN_RUNNER = pytest.mark.revision(">=0.5.9,<0.5.14")
PIECEWISE = pytest.mark.revision("<0.5.22")
BACKENDS = pytest.mark.revision(">=0.5.14")
VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"
BACKEND = "sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend"
REGION = ("cuda_graph", True)  # the tag that is paused, and that the host keeps a copy
POOL = (0, 7)


class Memory(device.Device):
    """Notes in which region of the saver each tensor was allocated: regions[pool], a set."""

    def __init__(self, library):
        super().__init__()
        self.library, self.regions = library, {}

    def full(self, value, *shape):
        pool = self.capturing.pool if self.capturing else device.DEFAULT_POOL
        self.regions.setdefault(pool, set()).add(self.library.region)
        return super().full(value, *shape)


@pytest.fixture
def memory(monkeypatch):
    """The stand-ins, with --enable-memory-saver and the variable set."""
    stand_in = saver.Saver()
    stand_in.install(monkeypatch)
    made = Memory(stand_in.library)
    made.install(monkeypatch)
    monkeypatch.setenv(VARIABLE, "1")
    serve(enable_memory_saver=True)
    return made


def serve(**changes):
    process.use_server_args(process.default_server_args(**changes))


@pytest.fixture
def capture(memory, monkeypatch):
    """capture(forward): the graph of a forward, made by the release's own primitive, else by the
    overlay's."""
    try:
        own = device.primitive(monkeypatch)
    except AssertionError:
        from sglang.srt.prefill_graph.breakable import graph as own

        made, begin = own.Graph, lambda graph: own.Capture(graph, POOL, None)
        monkeypatch.setattr(own, "weak_view", device.weak_view)
    else:
        made = own.BreakableCUDAGraph
        begin = lambda graph: own.BreakableCUDAGraphCapture(cuda_graph=graph, pool=POOL)  # noqa: E731

    def run(forward):
        graph = made()
        with begin(graph):
            forward()
        return graph

    run.break_at = getattr(own, "break_at", None) or own.eager_on_graph(True)
    return run


def two_layers(memory, break_at, seen):
    """A forward of two segments and a break between them, which allocates what it returns."""
    static = memory.full(1.0, 4)
    attention = break_at(lambda rows: memory.full(10 * rows[0].item(), 4))

    def forward():
        hidden = memory.full(0.0, 4)
        memory.launch(torch.add, static, 1.0, out=hidden)
        result = memory.full(0.0, 4)
        memory.launch(torch.add, attention(hidden), 1.0, out=result)
        seen.append(result)

    return static, forward


@BREAKABLE
def test_segments_are_paused_and_breaks_are_not(memory, capture):
    """What a break allocates is the allocator's ordinary memory: paused, it would be missing under
    its next owner."""
    seen = []
    static, forward = two_layers(memory, capture.break_at, seen)
    graph = capture(forward)
    assert memory.regions == {POOL: {REGION}, device.DEFAULT_POOL: {None}}
    assert memory.library.region is None
    for value in (2.0, 5.0):
        static.fill_(value)
        graph.replay()
        assert seen[0].eq(10 * (value + 1) + 1).all()


@BREAKABLE
@pytest.mark.parametrize("variable, enabled", [("0", True), (None, True), ("1", False)])
def test_nothing_changes_without_both(memory, capture, monkeypatch, variable, enabled):
    monkeypatch.delenv(VARIABLE)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    serve(enable_memory_saver=enabled)
    _static, forward = two_layers(memory, capture.break_at, [])
    capture(forward)
    assert memory.regions == {POOL: {None}, device.DEFAULT_POOL: {None}}


@BREAKABLE
def test_segments_neither_collect_garbage_nor_empty_the_cache(memory, capture, monkeypatch):
    """torch.cuda.graph does both: a graph of 32 layers and 30 sizes has 1000 segments."""
    collected = []
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(1))
    with torch.compiler.config.patch(force_cudagraph_gc=True):
        capture(two_layers(memory, capture.break_at, [])[1])
    assert collected == [] and memory.library.freed_inside == []
    gc.collect(), torch.cuda.empty_cache()
    assert (len(collected), len(memory.library.freed_inside)) == (1, 1), "they are back afterwards"


@BREAKABLE
def test_a_failed_capture_leaves_the_region(memory, capture):
    def forward():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(forward)
    assert memory.library.region is None and memory.capturing is None


@PIECEWISE
def test_pieces_are_paused(memory, monkeypatch):
    """The release's own backend, whose compiled piece is stood in for."""
    from sglang.srt.compilation import cuda_piecewise_backend as module

    static, made = memory.full(1.0, 4), []

    def piece(*_):
        result = memory.full(0.0, 4)
        memory.launch(torch.add, static, 1.0, out=result)
        made.append(result)
        return result

    for name in ("is_in_pcg_torch_compile", "is_in_torch_compile_warmup"):  # the latter from 0.5.14
        monkeypatch.setattr(module, name, lambda: False, raising=False)
    monkeypatch.setattr(module, "get_pcg_capture_stream", lambda: 0, raising=False)
    monkeypatch.setattr(module, "weak_ref_tensors", device.weak_view)
    entry = module.ConcreteSizeEntry(runtime_shape=4, need_to_compile=False, use_cudagraph=True)
    entry.runnable, entry.num_finished_warmup = piece, 1
    backend = object.__new__(module.CUDAPiecewiseBackend)
    config = SimpleNamespace(get_enable_debug_mode=lambda: False)
    vars(backend).update(
        first_run_finished=True,
        sym_shape_indices=[0],
        concrete_size_entries={4: entry},
        compile_config=config,
        is_first_graph=False,
        is_last_graph=False,
        graph_pool=POOL,
        is_debugging_mode=False,
    )
    backend(4)
    assert memory.regions == {device.DEFAULT_POOL: {None}, POOL: {REGION}}
    assert memory.library.region is None
    static.fill_(6.0)
    assert backend(4).eq(7).all() and len(made) == 1, "it is replayed"


@OWN_RUNNER
def test_the_prefill_graph_has_a_pool_apart_from_the_decode_graphs(memory):
    """Theirs is paused without a copy."""
    from sglang.srt.model_executor import cuda_graph_runner as pools
    from sglang.srt.prefill_graph.compat import pausing

    pools.set_global_graph_memory_pool((0, 1))
    try:
        with pausing.pool_apart():
            assert pools.get_global_graph_memory_pool() is None
            pools.set_global_graph_memory_pool((0, 2))
        assert pools.get_global_graph_memory_pool() == (0, 1)
        with contextlib.suppress(ZeroDivisionError), pausing.pool_apart():
            raise ZeroDivisionError
        assert pools.get_global_graph_memory_pool() == (0, 1)
    finally:
        pools.set_global_graph_memory_pool(None)


@OWN_RUNNER
def test_the_runner_captures_in_that_pool(memory, monkeypatch):
    from sglang.srt.model_executor import cuda_graph_runner as pools
    from sglang.srt.prefill_graph.breakable import runner as breakable

    monkeypatch.setattr(breakable, "refuse", lambda runner, in_order: None)
    monkeypatch.setattr(
        breakable, "BreakableRunner", lambda runner: pools.get_global_graph_memory_pool()
    )
    monkeypatch.setattr(
        breakable, "_make_upstream", lambda runner, upstream: pools.get_global_graph_memory_pool()
    )
    pools.set_global_graph_memory_pool((0, 1))
    try:
        assert [
            breakable.make_runner(SimpleNamespace(model=None), upstream)
            for upstream in (None, object)
        ] == [None, None]
        assert pools.get_global_graph_memory_pool() == (0, 1)
    finally:
        pools.set_global_graph_memory_pool(None)


@OWN_RUNNER
def test_without_pauses_they_share_one(memory, monkeypatch):
    from sglang.srt.model_executor import cuda_graph_runner as pools
    from sglang.srt.prefill_graph.compat import pausing

    monkeypatch.delenv(VARIABLE)
    pools.set_global_graph_memory_pool((0, 1))
    try:
        with pausing.pool_apart():
            assert pools.get_global_graph_memory_pool() == (0, 1)
    finally:
        pools.set_global_graph_memory_pool(None)


@BREAKABLE
def test_the_cache_is_emptied_inside_of_the_region_too(memory, monkeypatch):
    """Up to torch_memory_saver 0.0.9.post1 cudaFree only knows there what the region allocated."""
    from sglang.srt.prefill_graph.compat import pausing

    pausing.empty_cache()
    assert memory.library.freed_inside == [True, False] and memory.library.region is None
    monkeypatch.delenv(VARIABLE)
    pausing.empty_cache()
    assert memory.library.freed_inside == [True, False, False]


@BACKENDS
@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
def test_prefill_is_captured_beside_the_memory_saver(
    memory, build_model, monkeypatch, caplog, draft
):
    """The server died at start: "Breakable CUDA graph is not compatible with memory saver mode"."""
    from host import prefill

    module, resolve = importlib.import_module(BACKEND), prefill.resolve
    monkeypatch.setattr(
        module, "get_parallel", lambda: SimpleNamespace(tp_group=None), raising=False
    )
    made = []

    def capture(model, backend):
        runner = SimpleNamespace(device_module=None, model_runner=SimpleNamespace(tp_group=None))
        made.append(module.BreakableCudaGraphBackend(runner, enable_memory_saver=True))
        return resolve(model, backend)

    monkeypatch.setattr(prefill, "resolve", capture)
    found = prefill.capture(
        build_model("llama"),
        "breakable",
        layers=4,
        arguments=dict(enable_memory_saver=True),
        draft=draft,
    )
    assert getattr(found, "runner", found) is not None
    assert made[0]._memory_saver_adapter.enabled
    assert not [
        one.getMessage()
        for one in caplog.records
        if one.levelno >= logging.WARNING and "prefill_graph" in one.name
    ]
