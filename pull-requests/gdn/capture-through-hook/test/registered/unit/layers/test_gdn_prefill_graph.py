"""GDN's extend on the static tables of a breakable prefill graph. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase
from sglang.srt.layers.attention.linear import gdn_backend
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

register_cpu_ci(est_time=15, suite="base-a-test-cpu")


class Reached(Exception):
    pass


def _backend(kernel=None):
    cache = SimpleNamespace(conv=[torch.zeros(1, 2, 8, 3)], temporal=torch.zeros(1, 2))
    backend = gdn_backend.GDNAttnBackend.__new__(gdn_backend.GDNAttnBackend)
    backend.enable_mis = False
    backend.kernel_dispatcher = SimpleNamespace(extend_kernel=kernel)
    backend.req_to_token_pool = SimpleNamespace(
        mamba_pool=SimpleNamespace(mamba_cache=cache)
    )
    return backend


def _batch(verify):
    mode = SimpleNamespace(is_target_verify=lambda: verify)
    return SimpleNamespace(forward_mode=mode)


class TestGDNPrefillGraph(CustomTestCase):
    def test_extend_runs_on_the_tables_of_the_bucket(self):
        backend = _backend()
        backend.prefill_graph_metadata = "tables"
        given = (None, _batch(False), torch.zeros(1, 8), None, None)
        with patch.object(backend, "_extend_in_graph", return_value="in graph"):
            self.assertEqual(backend.forward_extend(*given), "in graph")

    def test_verify_and_eager_forwards_know_of_no_tables(self):
        backend = _backend()
        backend.prefill_graph_metadata = "tables"
        backend.forward_metadata = SimpleNamespace()
        given = (None, _batch(True), torch.zeros(1, 8), None, None)
        with self.assertRaises(AttributeError):
            backend.forward_extend(*given)

        def reached(self, forward_batch):
            assert not self.prefill_graph_extend_active()
            raise Reached

        with patch.object(MambaAttnBackendBase, "init_forward_metadata", reached):
            with self.assertRaises(Reached):
                backend.init_forward_metadata(None)

    def test_only_the_triton_kernel_on_contiguous_pools_is_captured(self):
        memory = SimpleNamespace(
            enable_hierarchical_cache=False, enable_unified_cache_external_linker=False
        )
        with (
            patch.object(gdn_backend, "is_cuda", return_value=True),
            patch.object(gdn_backend, "get_memory", return_value=memory),
        ):
            backend = _backend(TritonGDNKernel())
            self.assertTrue(backend.supports_prefill_graph_extend())
            for loads in vars(memory).copy():
                setattr(memory, loads, True)
                self.assertFalse(backend.supports_prefill_graph_extend())
                setattr(memory, loads, False)
            backend.enable_mis = True
            self.assertFalse(backend.supports_prefill_graph_extend())
            self.assertFalse(_backend("another").supports_prefill_graph_extend())
            strided = _backend(TritonGDNKernel())
            cache = strided.req_to_token_pool.mamba_pool.mamba_cache
            cache.conv = [cache.conv[0].transpose(2, 3)]
            self.assertFalse(strided.supports_prefill_graph_extend())


if __name__ == "__main__":
    unittest.main()
