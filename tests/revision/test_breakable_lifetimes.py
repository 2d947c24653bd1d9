"""What a breakable graph keeps for its breaks: the release's primitive on a stand-in for a GPU."""

import importlib
import itertools
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from host.device import DEFAULT_POOL, Device, weak_view
from host.device import primitive as release_primitive

pytestmark = pytest.mark.revision(">=0.5.11")

POOL = (0, 7)
SIZES = (8, 5, 3)  # captured from the largest to the smallest, as the runners do


@pytest.fixture
def device(monkeypatch):
    made = Device()
    made.install(monkeypatch)
    return made


@pytest.fixture
def primitive(device, monkeypatch):
    """The release's module of BreakableCUDAGraph, on the stand-in."""
    return release_primitive(monkeypatch)


def capture(primitive, forward, pool=POOL):
    """`forward` captured; returns the graph and what forward returned."""
    graph = primitive.BreakableCUDAGraph()
    with primitive.BreakableCUDAGraphCapture(cuda_graph=graph, pool=pool):
        result = forward()
    return graph, result


def test_an_input_from_outside_is_not_overwritten_by_smaller_sizes(primitive, device):
    seen = []
    look = primitive.eager_on_graph(True)(lambda x: seen.append(x.clone()))
    graphs = {}
    for size in SIZES:
        outside = device.full(float(size), size)
        graphs[size], _ = capture(primitive, lambda: look(outside))  # noqa: F821
        del outside
    assert device.in_use(DEFAULT_POOL) == len(SIZES)
    for order in itertools.permutations(SIZES):
        for size in order:
            graphs[size].replay()
            assert torch.equal(seen[-1], torch.full((size,), float(size))), (
                f"size {size} in {order}"
            )


def test_an_input_that_was_in_the_pool_before_is_kept(primitive, device):
    """A cache that an earlier capture filled and that forgets: later ones would get its memory."""
    seen, cache = [], []
    look = primitive.eager_on_graph(True)(lambda x: seen.append(x.clone()))
    earlier, _ = capture(primitive, lambda: cache.append(device.full(1.0, 8)))
    earlier.replay()
    graph, _ = capture(primitive, lambda: look(cache[0]))
    cache.clear()
    later, _ = capture(primitive, lambda: device.full(2.0, 8) is None)
    later.replay()
    graph.replay()
    assert seen[-1].eq(1).all(), seen[-1]


def test_an_input_of_an_own_segment_is_not_held(primitive, device):
    """Holding these would keep the activations of every layer and every size."""
    static = device.full(1.0, max(SIZES))
    seen = []
    look = primitive.eager_on_graph(True)(lambda x, rows: seen.append(x[:rows].clone()))

    def forward(size):
        inner = device.full(0.0, size, 2)
        for _ in range(3):  # each break's input may be given to the segment behind it
            inner, before = device.full(0.0, size, 2), inner
            device.launch(torch.add, static[:size, None].expand(-1, 2), float(size), out=inner)
            look(inner[:, 1], rows=size)
            del before

    graphs = {size: capture(primitive, lambda size=size: forward(size))[0] for size in SIZES}
    assert device.in_use(POOL) == 0
    for base, size in enumerate(SIZES + SIZES[::-1]):
        static.fill_(base)
        del seen[:]
        graphs[size].replay()
        assert torch.equal(torch.stack(seen), torch.full((3, size), float(base + size)))


def test_without_a_shared_pool_everything_is_held(primitive, device):
    look = primitive.eager_on_graph(True)(lambda x: None)
    _graph, address = capture(
        primitive, lambda: look(x := device.full(1.0, 4)) or x.data_ptr(), pool=None
    )
    assert address not in [free for pool in device.free.values() for free in pool]


def test_an_output_is_held_and_feeds_the_next_segment(primitive, device):
    """Up to 0.5.15.post1 a replay wrote it into memory that somebody else had by then."""
    static = device.full(0.0, max(SIZES))
    double = primitive.eager_on_graph(True)(lambda x: device.full(2 * x[0].item(), len(x)))

    def forward(size):
        result = device.full(0.0, size)
        device.launch(torch.add, double(static[:size]), 1.0, out=result)
        return result

    captured = {size: capture(primitive, lambda size=size: forward(size)) for size in SIZES}
    others = [device.full(-1.0, size) for size in SIZES]
    for order in itertools.permutations(SIZES):
        for value, size in enumerate(order):
            static.fill_(value)
            graph, result = captured[size]
            graph.replay()
            assert result.eq(2 * value + 1).all(), f"size {size} in {order}: {result}"
    for other in others:
        assert other.eq(-1).all(), f"a replay wrote into another tensor: {other}"


# The overlay alone


@pytest.fixture
def lifetimes():
    return importlib.import_module("sglang.srt.prefill_graph.breakable.lifetimes")


def in_pool(device, *shape):
    device.capturing = SimpleNamespace(pool=POOL, kernels=[])
    try:
        return device.full(0.0, *shape)
    finally:
        device.capturing = None


def test_snapshots_are_few(lifetimes, device):
    outside, first, second = device.full(0.0, 4), in_pool(device, 8), in_pool(device, 4)
    del first
    own = lifetimes.OwnMemory(POOL)
    first = in_pool(device, 4)
    for _ in range(3):
        assert own.owns(first) and not own.owns(outside) and not own.owns(second)
    assert device.snapshots == 2  # when made, and once for the address outside


def test_no_snapshot_owns_nothing_and_says_so_once(lifetimes, device, caplog):
    def fails(pool):
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    for _ in range(2):
        assert not lifetimes.OwnMemory(POOL, fails).owns(in_pool(device, 4))
    assert [record.message.count("cudaMallocAsync") for record in caplog.records] == [1]


def test_hold(lifetimes, device):
    own = lifetimes.OwnMemory(POOL)
    mine, other, empty = in_pool(device, 2, 4), device.full(1.0, 4), in_pool(device, 4)[:0]
    Pair = namedtuple("Pair", "left right")
    thing = SimpleNamespace(tensor=mine)
    value = (mine[:, 1], [other], {"pair": Pair(mine, 3)}, thing, None, empty)
    column, (same,), named, *rest = lifetimes.hold(value, own, weak_view)
    assert column.data_ptr() == mine[:, 1].data_ptr() and column.stride() == mine[:, 1].stride()
    assert same is other and rest == [thing, None, empty] and rest[2] is empty
    assert type(named["pair"]) is Pair
    assert named["pair"].left is not mine
    assert named["pair"].right == 3
    assert value[2]["pair"].left is mine, "the caller's own containers are not changed"
