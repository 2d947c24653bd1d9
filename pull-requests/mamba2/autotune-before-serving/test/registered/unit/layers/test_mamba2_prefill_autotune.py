"""Mamba2's prefill kernels are autotuned before a server takes requests. No GPU."""

import os
import unittest
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.mamba.triton_ops import (
    ssd_bmm,
    ssd_chunk_scan,
    ssd_chunk_state,
    ssd_state_passing,
)
from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
from sglang.srt.layers.attention.mamba.mamba import MambaMixer2
from sglang.srt.model_executor.runner import base_runner

register_cpu_ci(est_time=30, suite="base-a-test-cpu")

AUTOTUNED = [
    (ssd_bmm, "_bmm_chunk_fwd_kernel"),
    (ssd_chunk_scan, "_chunk_scan_fwd_kernel"),
    (ssd_chunk_state, "_chunk_cumsum_fwd_kernel"),
    (ssd_chunk_state, "_chunk_state_fwd_kernel"),
    (ssd_chunk_state, "_chunk_state_varlen_kernel"),
    (ssd_state_passing, "_state_passing_fwd_kernel"),
]
# How many tensors more are part of the key behind cached tokens: states, tables.
INITIAL = {
    "_chunk_scan_fwd_kernel": 3,
    "_chunk_state_varlen_kernel": 1,
    "_state_passing_fwd_kernel": 2,
}


class _Launches:
    """An autotuned kernel that runs at its defaults, and notes the dtypes it keys by."""

    def __init__(self, kernel):
        while not hasattr(kernel, "arg_names") or hasattr(kernel, "configs"):
            kernel = kernel.fn
        self.kernel, self.keys = kernel, []

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            tensors = filter(torch.is_tensor, [*args, *kwargs.values()])
            self.keys.append([tensor.dtype for tensor in tensors])
            self.kernel[grid](*args, **kwargs)

        return launch


def _mixer():
    mixer = MambaMixer2.__new__(MambaMixer2)
    torch.nn.Module.__init__(mixer)
    mixer.num_heads, mixer.n_groups, mixer.tp_size = 4, 2, 2
    mixer.head_dim = mixer.ssm_state_size = 16
    mixer.A, mixer.D, mixer.dt_bias = -torch.ones(2), torch.ones(2), torch.ones(2)
    return mixer


class TestMamba2PrefillAutotune(CustomTestCase):
    def test_each_kernel_is_tuned_cold_and_behind_cached_tokens(self):
        with ExitStack() as stack:
            stack.enter_context(
                patch.object(torch.cpu, "device", nullcontext, create=True)
            )
            launches = {
                name: stack.enter_context(
                    patch.object(module, name, _Launches(getattr(module, name)))
                )
                for module, name in AUTOTUNED
            }
            _mixer().autotune_prefill_kernels(
                chunk_size=16,
                dtype=torch.float16,
                state_dtype=torch.float32,
                num_tokens=40,
            )
        for name, launched in launches.items():
            cold, behind_cached = launched.keys
            self.assertEqual(len(behind_cached) - len(cold), INITIAL.get(name, 0), name)

    def test_the_backend_takes_sizes_and_types_of_its_model(self):
        backend = hybrid.Mamba2AttnBackend.__new__(hybrid.Mamba2AttnBackend)
        mixer = MagicMock(spec=MambaMixer2)
        model = SimpleNamespace(modules=lambda: [object(), mixer, object()])
        backend._model_runner = SimpleNamespace(model=model, dtype=torch.bfloat16)
        backend._mamba_chunk_size = 128
        cache = SimpleNamespace(temporal=torch.zeros(1))
        backend.req_to_token_pool = SimpleNamespace(
            mamba_pool=SimpleNamespace(mamba_cache=cache)
        )
        both = hybrid.HybridLinearAttnBackend.__new__(hybrid.HybridLinearAttnBackend)
        both.attn_backend_list = [MagicMock(), backend]
        for largest, num_tokens in ((0, 4096), (2048, 2048), (8192, 4096)):
            with patch.object(hybrid, "max_prefill_buffer_tokens", lambda: largest):
                both.autotune_prefill_kernels()
            mixer.autotune_prefill_kernels.assert_called_with(
                num_tokens=num_tokens,
                chunk_size=128,
                dtype=torch.bfloat16,
                state_dtype=torch.float32,
            )

    def test_a_runner_tunes_once_as_it_warms_up(self):
        runner = MagicMock(spec=base_runner.BaseRunner)
        backend = MagicMock()
        runner.model_runner = SimpleNamespace(
            device="cuda", is_draft_worker=False, attn_backend=backend, model=None
        )
        with patch.object(
            base_runner, "should_run_flashinfer_autotune", lambda runner: False
        ):
            for _ in range(2):
                base_runner.BaseRunner._warmup(runner)
        backend.autotune_prefill_kernels.assert_called_once_with()


if __name__ == "__main__":
    unittest.main()
