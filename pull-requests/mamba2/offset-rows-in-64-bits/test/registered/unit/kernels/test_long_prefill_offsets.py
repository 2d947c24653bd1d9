"""Prefill kernels of Mamba2 and GDN on more than 2**31 elements, interpreted. No GPU.

Rows that lie far apart must give the same bits as the same rows side by side. The
system gives a tensor its pages where it is touched, so this takes little memory.
"""

import os
import unittest
from contextlib import nullcontext
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from triton.runtime.interpreter import interpreter_builder

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.attention import triton_gdn_fused_proj as gdn_proj
from sglang.kernels.ops.attention.fla import chunk_delta_h, layernorm_gated
from sglang.kernels.ops.mamba.triton_ops import ssd_chunk_state

register_cpu_ci(est_time=40, suite="base-a-test-cpu")

LIMIT = 2**31  # elements that an int32 offset reaches


def _untouched(elements, dtype):
    """Memory with so much before it that a wrapped offset stays inside."""
    return torch.empty(LIMIT + elements, dtype=dtype)[LIMIT:]


def _spread(rows, stride):
    """The same rows, `stride` elements apart."""
    wide = _untouched(len(rows) * stride + rows[0].numel(), rows.dtype)
    wide = wide.as_strided(rows.shape, (stride, *rows.stride()[1:]), LIMIT)
    return wide.copy_(rows)


def _kernel(kernel):
    """The interpreted function of an autotuned kernel."""
    while not hasattr(kernel, "arg_names") or hasattr(kernel, "configs"):
        kernel = kernel.fn
    return kernel


class TestLongPrefillOffsets(CustomTestCase):
    def setUp(self):
        torch.manual_seed(7)

    def test_gated_norm(self):
        x, gate = torch.randn(5, 32).half(), torch.randn(5, 32).half()
        weight = torch.rand(32).half()

        def norm(x, gate):
            out = torch.empty(x.shape, dtype=x.dtype)
            layernorm_gated._layer_norm_fwd_1pass_kernel[(5, 2)](
                *(x, out, weight, None, gate, None, torch.empty(10)),
                *(x.stride(0), out.stride(0), gate.stride(0), 0, 0, 5, 16, 1e-5),
                BLOCK_N=16,
                ROWS_PER_BLOCK=1,
                HAS_BIAS=False,
                HAS_Z=True,
                Z_IS_3D=False,
                Z_HEADS=1,
                NORM_BEFORE_GATE=False,
                IS_RMS_NORM=True,
                ACTIVATION="swish",
            )
            return out

        far = _spread(x, LIMIT // 4 + 64), _spread(gate, LIMIT // 4 + 64)
        self.assertTrue(torch.equal(norm(*far), norm(x, gate)))

    def test_states_behind_requests(self):
        heads, size, chunk, rows = 2, 16, 16, 40
        x, b = torch.randn(rows, heads, size).half(), torch.randn(rows, 1, size).half()
        dt = torch.rand(heads, 3, chunk)
        sums, states = -dt.cumsum(-1), torch.randn(3, heads, size, size).half()
        starts = torch.tensor([0, 12, rows], dtype=torch.int32)
        autotuned = ssd_chunk_state._chunk_state_varlen_kernel
        stride = LIMIT // 25
        far = _spread(b, stride), _spread(x, stride), _spread(states, 16 * stride)
        kernel = patch.object(
            ssd_chunk_state, "_chunk_state_varlen_kernel", _kernel(autotuned)
        )
        device = patch.object(torch.cpu, "device", nullcontext, create=True)
        with kernel, device:
            one, other = (
                ssd_chunk_state.chunk_state_varlen(b, x, dt, sums, starts, states)
                for b, x, states in ((b, x, states), far)
            )
        self.assertTrue(torch.equal(one, other))

    def test_states_between_chunks(self):
        rows, chunks, size = 130, 3, 64
        k, v, w = (torch.randn(rows, size).half() / 8 for _ in range(3))
        kernel = _kernel(chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64)
        options = dict.fromkeys(kernel.arg_names)
        options |= {name: False for name in kernel.arg_names if name.isupper()}
        options |= dict(T=rows, Hg=1, K=size, V=size, BT=64, BV=32, NT_BUCKET=0)
        options |= dict(SAVE_NEW_VALUE=True, IS_VARLEN=True, k=k)
        options |= dict(
            cu_seqlens=torch.tensor([0, rows], dtype=torch.int32),
            chunk_offsets=torch.zeros(1, dtype=torch.int32),
            initial_state=torch.zeros(1),
            initial_state_indices=torch.zeros(1, dtype=torch.int32),
            stride_init_state=size * size,
            stride_track_state=0,
        )

        def states(heads):
            """One head's states of a layer of so many heads."""
            width = heads * size
            h = _spread(torch.zeros(chunks, size, size).half(), width * size)
            new = _spread(torch.zeros(rows, size).half(), width)
            far = dict(v=_spread(v, width), w=_spread(w, width), h=h, v_new=new)
            kernel[size // 32, 1](**options | far | dict(H=heads))
            return h, new

        for near, far in zip(states(1), states(2**18)):
            self.assertTrue(torch.equal(near, far))

    def test_projections_are_split(self):
        heads, size = 16, 128  # Qwen3-Next
        rows, width = 180000, heads * size * 6
        qkvz = _untouched(rows * width, torch.int8).view(rows, width)
        ba = torch.empty(rows, heads * 4, dtype=torch.int8)
        qkvz[-1].random_(), ba[-1].random_()
        for layout in ("", "_contiguous"):
            name = f"fused_qkvzba_split_reshape_cat{layout}"
            kernel = getattr(gdn_proj, f"{name}_kernel")

            class LastRow:
                def __getitem__(self, grid):
                    def launch(*args, **kwargs):
                        def at(x, y, z):
                            interpreter_builder.grid_idx = grid[0] - 1, y, z

                        with patch.object(interpreter_builder, "set_grid_idx", at):
                            kernel[1, grid[1]](*args, **kwargs)

                    return launch

            with patch.object(gdn_proj, f"{name}_kernel", LastRow()):
                split = getattr(gdn_proj, name)
                far, near = (
                    split(*rows, heads, 2 * heads, size, size)
                    for rows in ((qkvz, ba), (qkvz[-1:].clone(), ba[-1:].clone()))
                )
            for one, other in zip(far, near):
                self.assertTrue(torch.equal(one[-1], other[-1]), layout)


if __name__ == "__main__":
    unittest.main()
