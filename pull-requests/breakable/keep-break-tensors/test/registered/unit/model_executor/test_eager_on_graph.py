"""CPU tests of which inputs a graph break keeps alive."""

import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
    breakable_cuda_graph as bcg,
)
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=3, suite="base-a-test-cpu")

POOL = (0, 7)
WEAK_REFS = "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor"


class _DeviceTensor(torch.Tensor):
    device = torch.device("cuda")


class _XpuTensor(torch.Tensor):
    device = torch.device("xpu")


@pytest.fixture
def blocks(monkeypatch):
    """A stand-in allocator: address -> (bytes, pool) of the blocks in use."""
    made = {}

    def snapshot(pool, include_traces):
        return [
            {
                "address": address,
                "total_size": size,
                "segment_pool_id": owner,
                "blocks": [{"address": address, "size": size, "state": "active"}],
            }
            for address, (size, owner) in made.items()
            if owner == pool
        ]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", mock.MagicMock)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    monkeypatch.setattr(bcg, "get_device_module", lambda: mock.MagicMock())
    weak_refs = SimpleNamespace(weak_ref_tensors=lambda tensor: "weak")
    monkeypatch.setitem(sys.modules, WEAK_REFS, weak_refs)
    return made


def _allocate(blocks, pool):
    tensor = torch.zeros(16).as_subclass(_DeviceTensor)
    blocks[tensor.data_ptr()] = (tensor.nbytes, pool)
    return tensor


def _replayed_inputs(make_inputs, pool=POOL):
    """What a break gets in a replay, captured on inputs made within the capture."""
    seen = []
    look = bcg.eager_on_graph(lambda *inputs: seen.append(inputs))
    graph = bcg.BreakableCUDAGraph()
    with bcg.BreakableCUDAGraphCapture(cuda_graph=graph, pool=pool):
        look(*make_inputs())
    graph.replay()
    return seen[-1]


def test_break_holds_inputs_that_no_segment_of_its_graph_allocated(blocks):
    outside, earlier = _allocate(blocks, (0, 0)), _allocate(blocks, POOL)
    given = _replayed_inputs(lambda: (outside, earlier))
    assert given[0] is outside and given[1] is earlier


def test_break_does_not_hold_what_its_graph_writes_in_every_replay(blocks):
    assert _replayed_inputs(lambda: (_allocate(blocks, POOL),)) == ("weak",)


def test_break_holds_every_input_without_a_shared_pool(blocks):
    (given,) = _replayed_inputs(lambda: (_allocate(blocks, POOL),), pool=None)
    assert torch.is_tensor(given)


def test_xpu_keeps_weak_views_of_every_input(blocks):
    given = torch.zeros(16).as_subclass(_XpuTensor)
    assert _replayed_inputs(lambda: (given,)) == ("weak",)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
