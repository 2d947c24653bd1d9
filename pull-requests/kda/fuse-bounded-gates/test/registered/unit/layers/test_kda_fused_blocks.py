"""chunk_kda_fwd fuses diagonal blocks only where their clamped decays are exact."""

import unittest
from unittest.mock import patch

import torch

from sglang.kernels.ops.attention.fla import kda
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

HEADS, HEAD_DIM, CHUNK = 8, 128, 64


class _Chosen(Exception):
    """Ends a prefill where its kernels are chosen."""


def _fused(chunks, lower_bound):
    """What chunk_kda_fwd fuses for so many chunks."""
    found = {}

    def intra(**kwargs):
        found.update(kwargs)
        raise _Chosen

    x = torch.zeros(1, 1, HEADS, HEAD_DIM)
    indices = torch.zeros(chunks, 2, dtype=torch.int32)
    with (
        patch.object(kda, "kda_gate_chunk_cumsum", lambda g, **kwargs: g),
        patch.object(kda, "prepare_chunk_indices", lambda *args: indices),
        patch.object(kda, "chunk_kda_fwd_intra", intra),
    ):
        try:
            kda.chunk_kda_fwd(
                q=x,
                k=x,
                v=x,
                g=x,
                beta=x[..., 0],
                scale=1.0,
                initial_state=None,
                initial_state_indices=None,
                cu_seqlens=torch.tensor([0, CHUNK * chunks]),
                A_log=torch.zeros(HEADS),
                lower_bound=lower_bound,
            )
        except _Chosen:
            pass
    return found["fuse_diagonal"], found["fuse_recompute"]


class TestKDAFusedBlocks(CustomTestCase):
    def test_unbounded_gate_is_not_fused(self):
        for chunks in (1, 32, 33):
            self.assertEqual(_fused(chunks, None), (False, False), chunks)

    def test_bounded_gate_is_fused_for_small_grids(self):
        for chunks, fused in ((1, True), (32, True), (33, False)):
            self.assertEqual(_fused(chunks, -5.0), (fused, fused), chunks)


if __name__ == "__main__":
    unittest.main()
