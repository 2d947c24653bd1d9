"""Which inputs a break of a breakable CUDA graph keeps alive. No GPU."""

import sys
import unittest
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
    breakable_cuda_graph as bcg,
)

register_cpu_ci(est_time=12, suite="base-a-test-cpu")

POOL = (0, 7)
WEAK_REFS = "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor"


class _DeviceTensor(torch.Tensor):
    device = torch.device("cuda")


class _XpuTensor(torch.Tensor):
    device = torch.device("xpu")


class TestGraphBreakInputs(CustomTestCase):
    def setUp(self):
        """A stand-in allocator. self.blocks: address -> (bytes, pool) in use."""
        self.blocks = {}
        weak_refs = SimpleNamespace(weak_ref_tensors=lambda tensor: "weak")
        for patcher in (
            patch.multiple(
                torch.cuda,
                CUDAGraph=MagicMock,
                is_available=lambda: True,
                get_allocator_backend=lambda: "native",
                memory_snapshot=self._snapshot,
            ),
            patch.object(bcg, "get_device_module", MagicMock),
            patch.dict(sys.modules, {WEAK_REFS: weak_refs}),
        ):
            patcher.start()
            self.addCleanup(patcher.stop)

    def _snapshot(self, pool, include_traces):
        return [
            {
                "address": address,
                "total_size": size,
                "segment_pool_id": owner,
                "blocks": [{"address": address, "size": size, "state": "active"}],
            }
            for address, (size, owner) in self.blocks.items()
            if owner == pool
        ]

    def _allocate(self, pool):
        tensor = torch.zeros(16).as_subclass(_DeviceTensor)
        self.blocks[tensor.data_ptr()] = (tensor.nbytes, pool)
        return tensor

    def _replayed_inputs(self, make_inputs, pool=POOL):
        """What a break gets in a replay, captured on inputs made within the capture."""
        seen = []
        look = bcg.eager_on_graph(lambda *inputs: seen.append(inputs))
        graph = bcg.BreakableCUDAGraph()
        with bcg.BreakableCUDAGraphCapture(cuda_graph=graph, pool=pool):
            look(*make_inputs())
        graph.replay()
        return seen[-1]

    def test_inputs_that_no_segment_of_the_graph_allocated_are_held(self):
        outside, earlier = self._allocate((0, 0)), self._allocate(POOL)
        given = self._replayed_inputs(lambda: (outside, earlier))
        self.assertIs(given[0], outside)
        self.assertIs(given[1], earlier)

    def test_what_the_graph_writes_in_every_replay_is_not_held(self):
        given = self._replayed_inputs(lambda: (self._allocate(POOL),))
        self.assertEqual(given, ("weak",))

    def test_every_input_is_held_without_a_shared_pool(self):
        (given,) = self._replayed_inputs(lambda: (self._allocate(POOL),), pool=None)
        self.assertTrue(torch.is_tensor(given))

    def test_xpu_keeps_weak_views_of_every_input(self):
        given = torch.zeros(16).as_subclass(_XpuTensor)
        self.assertEqual(self._replayed_inputs(lambda: (given,)), ("weak",))


if __name__ == "__main__":
    unittest.main()
