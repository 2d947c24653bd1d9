"""What a breakable CUDA graph captures in the memory saver's region. No GPU."""

import contextlib
import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.runner_backend import (
    breakable_cuda_graph_backend as backend,
)
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import (
    breakable_cuda_graph as bcg,
)

register_cpu_ci(est_time=12, suite="base-a-test-cpu")

POOL = (0, 7)


class _Segment:
    """A torch.cuda.CUDAGraph that records nothing."""

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.pool = pool

    def capture_end(self):
        pass

    def replay(self):
        pass


class _Saver:
    """Captures as torch_memory_saver does, and notes in which region it is."""

    enabled = True

    def __init__(self):
        self.region = None

    @contextlib.contextmanager
    def cuda_graph(self, *, cuda_graph, pool, tag, enable_cpu_backup, **_):
        torch.cuda.empty_cache()
        cuda_graph.capture_begin(pool=pool)
        self.region = (tag, enable_cpu_backup)
        try:
            yield
        finally:
            self.region = None
            cuda_graph.capture_end()


class TestMemorySaver(CustomTestCase):
    def setUp(self):
        self.emptied = []
        stream = SimpleNamespace(cuda_stream=0, stream_id=0)
        for target, name, stand_in in (
            (torch.cuda, "CUDAGraph", _Segment),
            (torch.cuda, "memory_snapshot", lambda pool=(0, 0): []),
            (torch.cuda, "current_stream", lambda device=None: stream),
            (torch.cuda, "empty_cache", lambda: self.emptied.append(1)),
            (bcg, "get_device_module", lambda: torch.cuda),
            (bcg, "_weak_ref_if_tensor", lambda value: value),
        ):
            patcher = mock.patch.object(target, name, stand_in)
            patcher.start()
            self.addCleanup(patcher.stop)

    def _regions(self, saver):
        seen = []
        attend = bcg.eager_on_graph(lambda x: seen.append(("break", saver.region)))
        graph = bcg.BreakableCUDAGraph()
        with bcg.BreakableCUDAGraphCapture(
            cuda_graph=graph, pool=POOL, memory_saver_adapter=saver
        ):
            seen.append(("segment", saver.region))
            attend(torch.zeros(1))
            seen.append(("segment", saver.region))
        seen.append(("behind", saver.region))
        self.assertEqual([segment.pool for segment in graph._segments], [POOL, POOL])
        return seen

    def test_segments_are_paused_and_breaks_are_not(self):
        """A break's memory is the allocator's ordinary memory."""
        inside = ("cuda_graph", True)
        self.assertEqual(
            self._regions(_Saver()),
            [
                ("segment", inside),
                ("break", None),
                ("segment", inside),
                ("behind", None),
            ],
        )

    def test_the_cache_is_not_emptied_for_each_segment(self):
        self._regions(_Saver())
        self.assertEqual(self.emptied, [])

    def _backend(self, saver, xpu):
        runner = SimpleNamespace(
            device_module=None, model_runner=SimpleNamespace(tp_group=None)
        )
        parallel = SimpleNamespace(tp_group=None)
        with (
            mock.patch.object(backend, "get_parallel", lambda: parallel),
            mock.patch.object(backend, "is_xpu", lambda: xpu),
            mock.patch.object(
                backend.TorchMemorySaverAdapter, "create", lambda enable: saver
            ),
        ):
            return backend.BreakableCudaGraphBackend(runner, enable_memory_saver=True)

    def test_the_backend_starts_beside_the_memory_saver(self):
        saver = _Saver()
        made = self._backend(saver, xpu=False)
        self.assertIs(made._memory_saver_adapter, saver)

    def test_xpu_whose_graphs_the_saver_cannot_capture_is_refused(self):
        with self.assertRaises(NotImplementedError):
            self._backend(_Saver(), xpu=True)


if __name__ == "__main__":
    unittest.main()
