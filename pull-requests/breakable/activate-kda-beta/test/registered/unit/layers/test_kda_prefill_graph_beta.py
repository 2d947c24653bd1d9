"""What KDA's kernel is told of beta in a breakable prefill graph. No GPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention.linear import kda_backend, kda_prefill_graph
from sglang.srt.model_executor.forward_batch_info import ForwardMode

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

TOKENS, HEADS, SIZE = 6, 2, 4
DIM = HEADS * SIZE


def _convolve(x, *args, **words):
    return x


class Extend:
    """A kernel that only keeps what it is given."""

    def extend(self, *, q, **given):
        self.given = given
        return torch.zeros(1, TOKENS, HEADS, SIZE)


def _told(a, meta):
    """What the kernel is given for a gate of such a shape."""
    kernel = Extend()
    backend = kda_backend.KDAAttnBackend.__new__(kda_backend.KDAAttnBackend)
    cache = SimpleNamespace(conv=[torch.zeros(2, 3, DIM)], temporal=None)
    backend.req_to_token_pool = SimpleNamespace(mamba2_layer_cache=lambda layer: cache)
    backend.kernel_dispatcher = kernel
    backend.accept_lens_pool = None
    backend.prefill_graph_metadata = meta
    backend.forward_metadata = SimpleNamespace(
        query_start_loc=None,
        mamba_cache_indices=None,
        logical_num_tokens=TOKENS,
        has_mamba_track_mask=False,
        track_chunk_idx=None,
        state_checkpoint_cu_starts=None,
        num_state_checkpoints=None,
        state_checkpoint_every_n_tokens=None,
        state_checkpoint_indices=None,
        track_ssm_h_batch_src=None,
    )
    backend._convolve_prefill = lambda layer, batch, x, *rest: x
    layer = SimpleNamespace(
        layer_id=0,
        conv_weights=None,
        bias=None,
        q_dim=DIM,
        k_dim=DIM,
        v_dim=DIM,
        head_q_dim=SIZE,
        head_k_dim=SIZE,
        head_v_dim=SIZE,
        A_log=None,
        dt_bias=None,
        lower_bound=None,
    )
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        extend_prefix_lens=torch.zeros(1),
        extend_seq_lens_cpu=[TOKENS],
    )
    with patch.object(kda_prefill_graph, "causal_conv1d_fn", _convolve):
        backend.forward_extend(
            layer, batch, torch.zeros(TOKENS, 3 * DIM), a, torch.zeros(1, TOKENS, HEADS)
        )
    return kernel.given["beta_is_raw"], kernel.given["g"].shape


class TestKDAPrefillGraphBeta(CustomTestCase):
    def test_the_graph_tells_the_kernel_what_eager_prefill_does(self):
        """Kimi's models hand their gate over by heads, GLM's flat, and beta raw."""
        meta = SimpleNamespace(
            track=False,
            flashinfer=None,
            has_initial_state=None,
            cache_indices=None,
            cu_seqlens=None,
            conv_block_table=None,
            chunk_indices=None,
            chunk_offsets=None,
            token_index=torch.arange(TOKENS),
            num_logical_tokens=torch.tensor(TOKENS),
        )
        for shape in ((1, TOKENS, HEADS, SIZE), (1, TOKENS, DIM)):
            gate = torch.zeros(shape)
            self.assertEqual(_told(gate, meta), _told(gate, None))


if __name__ == "__main__":
    unittest.main()
