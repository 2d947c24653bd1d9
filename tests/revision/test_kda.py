"""What KDA's kernels are told by the release's backend, in a breakable graph and eagerly."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from host import late
from host.unsaid import Unsaid

with late.modules():
    from sglang.srt.layers.attention.linear import kda_backend, kda_prefill_graph
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.models import kimi_linear

TOKENS, HEADS, SIZE = 6, 2, 4
DIM = HEADS * SIZE
PLACES = ("sglang.kernels.ops.attention.fla.kda", "sglang.srt.layers.attention.fla.kda")


class Kernel:
    """Keeps what it is given, and computes nothing."""

    def extend(self, **given):
        self.given = given
        return torch.zeros(1, TOKENS, HEADS, SIZE)


def told(monkeypatch, gate: torch.Tensor, meta) -> tuple[bool, torch.Size]:
    """Whether beta is raw, and the gate's shape, as the kernel is told. meta: of a captured
    prefill; None: an eager one."""
    kernel = Kernel()
    cache = SimpleNamespace(conv=[torch.zeros(2, 3, DIM)], temporal=None)
    backend = kda_backend.KDAAttnBackend.__new__(kda_backend.KDAAttnBackend)
    backend.req_to_token_pool = SimpleNamespace(mamba2_layer_cache=lambda layer: cache)
    backend.kernel_dispatcher = kernel
    backend.accept_lens_pool = None
    backend.prefill_graph_metadata = meta
    backend.forward_metadata = Unsaid(
        logical_num_tokens=TOKENS, query_start_loc=torch.tensor([0, TOKENS])
    )
    same = lambda x, *args, **words: x  # noqa: E731
    monkeypatch.setattr(kda_prefill_graph, "causal_conv1d_fn", same)
    monkeypatch.setattr(kda_backend, "causal_conv1d_fn", same, raising=False)
    backend._convolve_prefill = lambda layer, batch, x, *rest: x
    layer = Unsaid(q_dim=DIM, k_dim=DIM, v_dim=DIM, layer_id=0)
    layer.head_q_dim = layer.head_k_dim = layer.head_v_dim = SIZE
    batch = Unsaid(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        extend_prefix_lens=torch.zeros(1, dtype=torch.int32),
        extend_seq_lens_cpu=[TOKENS],
    )
    x, beta = torch.zeros(TOKENS, 3 * DIM), torch.zeros(1, TOKENS, HEADS)
    backend.forward_extend(layer, batch, x, gate, beta)
    return kernel.given["beta_is_raw"], kernel.given["g"].shape


@pytest.mark.patch("breakable/activate-kda-beta")
@pytest.mark.revision(">=0.5.22")
@pytest.mark.parametrize("shape", [(1, TOKENS, HEADS, SIZE), (1, TOKENS, DIM)])
def test_the_graph_says_of_beta_what_eager_prefill_says(monkeypatch, shape):
    """Kimi's models hand their gate over by heads, GLM's flat, and beta before its sigmoid."""
    meta = Unsaid(
        track=False, token_index=torch.arange(TOKENS), num_logical_tokens=torch.tensor(TOKENS)
    )
    gate = torch.zeros(shape)
    found = told(monkeypatch, gate, meta)
    assert found == told(monkeypatch, gate, None)
    assert found == (True, (1, TOKENS, HEADS, SIZE))


class Chosen(Exception):
    """Ends a forward where its kernels are chosen."""


@pytest.mark.revision(">=0.5.8,<0.5.9")
@pytest.mark.parametrize("mode", ["EXTEND", "DECODE"])
def test_beta_is_activated_once(monkeypatch, mode):
    """The kernel that decodes takes the sigmoid itself: the state learned 50 to 73% of a token."""
    monkeypatch.setattr(kimi_linear, "fused_kda_gate", lambda gate, *words, **named: gate)
    layer, raw = MagicMock(), torch.tensor([[-4.0, 3.0]])
    layer.b_proj.return_value = raw, None
    batch = MagicMock(forward_mode=forward_batch_info.ForwardMode[mode])
    batch.attn_backend.forward.side_effect = Chosen
    with pytest.raises(Chosen):
        kimi_linear.KimiDeltaAttention.forward(layer, None, None, batch, None)
    [beta] = batch.attn_backend.forward.call_args.kwargs["beta"]
    torch.testing.assert_close(beta, raw if mode == "DECODE" else raw.sigmoid())


def chosen(monkeypatch, chunks: int, lower_bound: float | None) -> dict:
    """How chunk_kda_fwd asks for the blocks of so many chunks of 64 tokens."""
    module, found = late.first(*PLACES), {}

    def blocks(**given):
        found.update(given)
        raise Chosen

    monkeypatch.setattr(module, "kda_gate_chunk_cumsum", lambda g, **words: g)
    monkeypatch.setattr(module, "chunk_local_cumsum", lambda g, **words: g)
    monkeypatch.setattr(module, "chunk_kda_fwd_intra", blocks)
    rows = torch.zeros(chunks, 2, dtype=torch.int32)
    monkeypatch.setattr(module, "prepare_chunk_indices", lambda *words: rows)
    x = torch.zeros(1, 1, 8, 128)
    with pytest.raises(Chosen):
        module.chunk_kda_fwd(
            **dict.fromkeys("qkvg", x),
            **dict.fromkeys(("initial_state", "initial_state_indices")),
            beta=x[..., 0],
            scale=1.0,
            cu_seqlens=torch.tensor([0, 64 * chunks]),
            A_log=torch.zeros(8),
            lower_bound=lower_bound,
        )
    return {name: found[name] for name in ("fuse_diagonal", "fuse_recompute")}


@pytest.mark.revision(">=0.5.12")
@pytest.mark.parametrize(
    ("chunks", "bound", "fused"),
    [(n, bound, bool(bound) and n < 33) for bound in (None, -5.0) for n in (1, 32, 33)],
)
def test_a_bounded_gate_alone_gets_clamped_decays(monkeypatch, chunks, bound, fused):
    """Kimi-Linear's gate has no lower bound. A channel may forget more than the clamp in 16
    tokens, and did in a small random model. Kimi-K3's is at least -5: 108 powers of two in 15
    steps, which the clamp leaves alone."""
    assert {*chosen(monkeypatch, chunks, bound).values()} == {fused}
