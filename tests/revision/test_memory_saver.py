"""A server whose memory saver pauses graphs, as RL trainers start it: what the prefill graph's
captures put in its region.

The package's own Python runs, and the release's: only the saver's library and the GPU's allocator
are stood in for.
"""

import gc
import importlib
import importlib.util
import inspect
from types import SimpleNamespace

import pytest
import torch
from host import device, late, logged, prefill, process, saver
from host.unsaid import bare
from torch.overrides import TorchFunctionMode

with late.modules():
    from sglang.srt.compilation import cuda_piecewise_backend
    from sglang.srt.mem_cache import dsa_cache_layer_split, mamba_checkpoint_pool, memory_pool
    from sglang.srt.model_executor import cuda_graph_runner
    from sglang.srt.utils import torch_memory_saver_adapter

BREAKABLE = pytest.mark.revision(">=0.5.9")  # before 0.5.11 the overlay's own
OF_GRAPH = pytest.mark.patch("breakable/pause-with-memory-saver", "breakable/run-on-older-releases")
PIECEWISE = pytest.mark.revision("<0.5.22")
BACKENDS = pytest.mark.revision(">=0.5.14")
SECOND_ALL_REDUCE = pytest.mark.revision(">=0.5.10,<0.5.16")  # then its C++ decides
LAYER_SPLIT = pytest.mark.revision(">=0.5.16,<0.5.18")
VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"
BACKEND = "sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend"
FULL = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend"
ALL_REDUCE = "sglang.srt.distributed.device_communicators.custom_all_reduce_v2"
REGION = ("cuda_graph", True)  # the tag that is paused, and that the host keeps a copy
KV_REGION = ("kv_cache", False)  # nothing reads of it what was written before a pause
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
    """capture(forward): its graph, made by the release's own primitive, else by the overlay's."""
    try:
        own = device.primitive(monkeypatch)
    except ImportError:
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


@OF_GRAPH
@BREAKABLE
def test_segments_are_paused_and_breaks_are_not(memory, capture):
    """A break allocates ordinary memory: paused, it would be missing under its next owner."""
    seen = []
    static, forward = two_layers(memory, capture.break_at, seen)
    graph = capture(forward)
    assert memory.regions == {POOL: {REGION}, device.DEFAULT_POOL: {None}}
    assert memory.library.region is None
    for value in (2.0, 5.0):
        static.fill_(value)
        graph.replay()
        assert seen[0].eq(10 * (value + 1) + 1).all()


@OF_GRAPH
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


@OF_GRAPH
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


@OF_GRAPH
@BREAKABLE
def test_a_failed_capture_leaves_the_region(memory, capture):
    def forward():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(forward)
    assert memory.library.region is None and memory.capturing is None


@pytest.mark.patch("piecewise/pause-with-memory-saver")
@PIECEWISE
def test_pieces_are_paused(memory, monkeypatch):
    """The release's own backend, whose compiled piece is stood in for."""
    static, made = memory.full(1.0, 4), []

    def piece(*_):
        result = memory.full(0.0, 4)
        memory.launch(torch.add, static, 1.0, out=result)
        made.append(result)
        return result

    for name in ("is_in_pcg_torch_compile", "is_in_torch_compile_warmup"):  # the latter from 0.5.14
        monkeypatch.setattr(cuda_piecewise_backend, name, lambda: False, raising=False)
    monkeypatch.setattr(cuda_piecewise_backend, "get_pcg_capture_stream", lambda: 0, raising=False)
    monkeypatch.setattr(cuda_piecewise_backend, "weak_ref_tensors", device.weak_view)
    entry = cuda_piecewise_backend.ConcreteSizeEntry(
        runtime_shape=4, need_to_compile=False, use_cudagraph=True
    )
    entry.runnable, entry.num_finished_warmup = piece, 1
    backend = bare(
        cuda_piecewise_backend.CUDAPiecewiseBackend,
        first_run_finished=True,
        sym_shape_indices=[0],
        concrete_size_entries={4: entry},
        compile_config=SimpleNamespace(get_enable_debug_mode=lambda: False),
        graph_pool=POOL,
    )
    backend(4)
    assert memory.regions == {device.DEFAULT_POOL: {None}, POOL: {REGION}}
    assert memory.library.region is None
    static.fill_(6.0)
    assert backend(4).eq(7).all() and len(made) == 1, "it is replayed"


def capture_decode(run, monkeypatch):
    """Capture `run` as the release captures its decode graphs."""
    if importlib.util.find_spec("sglang.srt.model_executor.runner_backend"):  # from 0.5.14
        module, group = importlib.import_module(FULL), SimpleNamespace(barrier=lambda: None)
        parallel = SimpleNamespace(tp_group=group)
        monkeypatch.setattr(module, "get_parallel", lambda: parallel, raising=False)
        runner = SimpleNamespace(device_module=torch.cuda, model_runner=parallel)
        backend = module.FullCudaGraphBackend(runner, enable_memory_saver=True)
        backend._pool, backend._capture_stream = POOL, object()
        backend.capture_one("one size", run)
        return
    arguments = SimpleNamespace(enable_memory_saver=True, debug_cuda_graph=False)
    model_runner = SimpleNamespace(server_args=arguments)
    runner = SimpleNamespace(model_runner=model_runner, device_module=torch.cuda)
    cuda_graph_runner.CudaGraphRunner._capture_graph(
        runner, torch.cuda.CUDAGraph(), POOL, object(), run
    )


def test_decode_graphs_are_backed_up(memory, monkeypatch):
    """They woke without what their capture had written, and answered nonsense (sglang#32718)."""
    capture_decode(lambda: memory.full(0.0, 4), monkeypatch)
    assert memory.regions[POOL] == {REGION} and memory.library.region is None


@SECOND_ALL_REDUCE
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("piecewise", [False, True])
def test_all_reduces_of_paused_graphs_copy_their_inputs(monkeypatch, paused, piecewise):
    """No other rank can open paused memory: capture died of "invalid argument" (sglang#27948)."""
    module, in_place = importlib.import_module(ALL_REDUCE), []
    for name in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph"):
        monkeypatch.setattr(module, name, lambda: piecewise, raising=False)
    monkeypatch.setenv(VARIABLE, str(int(paused)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    one, library = object.__new__(module.CustomAllReduceV2), {"capturing": False}
    one.disabled, one.tms_cudagraph = False, paused  # the latter is 0.5.15's
    one.obj = SimpleNamespace(
        set_cuda_graph_capture=lambda on: library.update(capturing=on),
        share_graph_inputs=list,
        get_graph_capture_ptrs=list,
        register_inputs=lambda _: None,
        free=lambda _: None,
    )
    one.group = None
    one._share_list = lambda given: [given]
    one._all_reduce = lambda _: in_place.append(library["capturing"])
    with one.capture():
        one.custom_all_reduce(torch.zeros(1))
        in_place.append(library["capturing"])  # what the next one of the capture finds
    assert in_place == [not (paused or piecewise), not paused] and not library["capturing"]


class Allocations(TorchFunctionMode):
    """regions: for each tensor that torch.zeros, empty and arange make, in which region."""

    def __init__(self, library):
        super().__init__()
        self.library, self.regions, self._made = library, {}, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.zeros, torch.empty, torch.arange):
            self._made.append(result)  # else its id would be another's
            self.regions[id(result)] = self.library.region
        return result


def sparse_pool(kind, **words):
    """A pool of latent keys and values and of index keys, of 2 pages of 64 tokens."""
    words |= dict(size=128, page_size=64, dtype=torch.bfloat16, layer_num=2, device="cpu")
    words |= dict(kv_lora_rank=128, qk_rope_head_dim=64, index_head_dim=128)
    if "kv_cache_dim" in inspect.signature(kind).parameters:  # from 0.5.8
        words |= dict(kv_cache_dim=192)
    return kind(enable_memory_saver=True, **words)


def test_index_keys_are_paused_with_the_cache(memory):
    """They stayed on the GPU: 132 bytes for each token and layer (slime's own patch has it too)."""
    kind = getattr(memory_pool, "DSATokenToKVPool", None) or memory_pool.NSATokenToKVPool
    with Allocations(memory.library) as made:
        pool = sparse_pool(kind)
    for buffers in (pool.kv_buffer, pool.index_k_with_scale_buffer):
        assert [made.regions[id(one)] for one in buffers] == [KV_REGION] * 2


@LAYER_SPLIT
def test_index_keys_of_split_layers_are_paused_too(memory, monkeypatch):
    kind = dsa_cache_layer_split.LayerSplitDSATokenToKVPool
    pool = object.__new__(kind)
    monkeypatch.setattr(kind, "_is_layer_owned", lambda self, layer: layer == 0)
    vars(pool).update(
        index_buf_size=128, page_size=64, index_head_dim=128, layer_num=2, start_layer=0
    )
    adapter = torch_memory_saver_adapter.TorchMemorySaverAdapter.create(enable=True)
    vars(pool).update(custom_mem_pool=None, memory_saver_adapter=adapter, device="cpu")
    with Allocations(memory.library) as made:
        pool._create_index_buffers()
    buffers = [*pool.index_k_with_scale_buffer, pool.remote_index_k_with_scale_buffer]
    assert [made.regions[id(one)] for one in buffers] == [KV_REGION] * 3


@BACKENDS
@pytest.mark.parametrize("enabled", [True, False])
def test_int8_states_are_paused_and_their_free_slots_are_not(memory, enabled):
    serve(enable_memory_saver=enabled, enable_int8_mamba_checkpoint=True)
    shape = SimpleNamespace(temporal=(2, 4, 4), conv=[(8, 3)])
    kinds = SimpleNamespace(temporal=torch.bfloat16, conv=torch.bfloat16)
    with Allocations(memory.library) as made:
        pool = mamba_checkpoint_pool.maybe_init_int8_mamba_checkpoint_pool(
            mamba_size=3,
            cache_params=SimpleNamespace(shape=shape, dtype=kinds),
            mamba_layer_ids=[0, 1],
            device="cpu",
        )
    states = (pool.temporal.qdata, pool.temporal.scale, *pool.conv)
    assert [made.regions[id(one)] for one in states] == [KV_REGION if enabled else None] * 3
    assert made.regions[id(pool.allocator.free_slots)] is None
    assert pool.available_size() == 6


@BACKENDS
@pytest.mark.parametrize("draft", [False, True], ids=["target", "draft"])
def test_prefill_is_captured_beside_the_memory_saver(
    memory, build_model, monkeypatch, caplog, draft
):
    """The server died at start: "Breakable CUDA graph is not compatible with memory saver mode"."""
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
    assert not logged.warnings(caplog, loggers="sglang.srt.prefill_graph")
