"""What breaks of a breakable CUDA graph keep alive, on a stand-in for the allocator. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
    breakable_cuda_graph as bcg,
)

register_cpu_ci(est_time=12, suite="base-a-test-cpu")

POOL = (0, 7)


class _Segment:
    """A torch.cuda.CUDAGraph that records nothing."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        pass

    def capture_end(self):
        pass

    def replay(self):
        pass


class _WeakView(torch.Tensor):
    """Marks what a break holds without keeping its memory."""


class TestBreakLifetimes(CustomTestCase):
    def setUp(self):
        self.blocks = {}  # address -> (bytes, pool)
        stream = SimpleNamespace(cuda_stream=0, stream_id=0)
        for target, name, stand_in in (
            (torch.cuda, "CUDAGraph", _Segment),
            (torch.cuda, "memory_snapshot", self._snapshot),
            (torch.cuda, "current_stream", lambda device=None: stream),
            (bcg, "get_device_module", lambda: torch.cuda),
            (bcg, "_weak_ref_if_tensor", self._weak_view),
        ):
            patcher = mock.patch.object(target, name, stand_in)
            patcher.start()
            self.addCleanup(patcher.stop)

    @staticmethod
    def _weak_view(value):
        return value.as_subclass(_WeakView) if torch.is_tensor(value) else value

    def _snapshot(self, pool=(0, 0)):
        return [
            {
                "address": address,
                "total_size": size,
                "segment_pool_id": owner,
                "blocks": [
                    {"address": address, "size": size, "state": "active_allocated"}
                ],
            }
            for address, (size, owner) in self.blocks.items()
            if pool in ((0, 0), owner)
        ]

    def _tensor(self, pool):
        made = torch.zeros(16)
        self.blocks[made.data_ptr()] = (made.nbytes, pool)
        return made

    def _replayed(self, *inputs, during=()):
        """What a break is given in a replay. during: pools of further inputs, allocated while capturing."""
        seen = []

        @bcg.eager_on_graph
        def look(*args, **kwargs):
            seen.append((args, kwargs))

        graph = bcg.BreakableCUDAGraph()
        with bcg.BreakableCUDAGraphCapture(cuda_graph=graph, pool=POOL):
            later = [self._tensor(pool) for pool in during]
            look(*inputs, *later, named=[*inputs, *later])
        graph.replay()
        return seen[-1]

    def test_what_the_graphs_own_segments_allocated_stays_weak(self):
        (given,), _ = self._replayed(during=[POOL])
        self.assertIsInstance(given, _WeakView)

    def test_what_was_allocated_elsewhere_is_held(self):
        outside = self._tensor((0, 0))
        (given,), _ = self._replayed(outside)
        self.assertIs(given, outside)

    def test_what_was_in_the_pool_before_the_capture_is_held(self):
        """An earlier capture freed it to the pool's next taker."""
        earlier = self._tensor(POOL)
        (given,), _ = self._replayed(earlier)
        self.assertIs(given, earlier)

    def test_tensors_inside_of_lists_are_looked_at_too(self):
        outside = self._tensor((0, 0))
        _, kwargs = self._replayed(outside, during=[POOL])
        self.assertIs(kwargs["named"][0], outside)
        self.assertIsInstance(kwargs["named"][1], _WeakView)

    def test_everything_is_held_where_the_allocator_gives_no_snapshot(self):
        refuse = mock.Mock(side_effect=RuntimeError("no snapshot"))
        with mock.patch.object(torch.cuda, "memory_snapshot", refuse):
            (given,), _ = self._replayed(during=[POOL])
        self.assertNotIsInstance(given, _WeakView)


if __name__ == "__main__":
    unittest.main()
