"""Which kernels a KDA prefill takes for the diagonal blocks of a chunk, as the release chooses."""

import pytest
import torch
from host import late

pytestmark = pytest.mark.revision(">=0.5.12")

HEADS, SIZE = 8, 128
PLACES = ("sglang.kernels.ops.attention.fla.kda", "sglang.srt.layers.attention.fla.kda")


class Chosen(Exception):
    """Ends a prefill where its kernels are chosen."""


def chosen(monkeypatch, chunks: int, lower_bound: float | None) -> dict:
    """How chunk_kda_fwd asks for the blocks of so many chunks of 64 tokens."""
    module, found = late.first(*PLACES), {}

    def blocks(**given):
        found.update(given)
        raise Chosen

    monkeypatch.setattr(module, "kda_gate_chunk_cumsum", lambda g, **words: g)
    monkeypatch.setattr(module, "chunk_local_cumsum", lambda g, **words: g)
    monkeypatch.setattr(module, "chunk_kda_fwd_intra", blocks)
    monkeypatch.setattr(
        module, "prepare_chunk_indices", lambda *words: torch.zeros(chunks, 2, dtype=torch.int32)
    )
    x = torch.zeros(1, 1, HEADS, SIZE)
    with pytest.raises(Chosen):
        module.chunk_kda_fwd(
            q=x,
            k=x,
            v=x,
            g=x,
            beta=x[..., 0],
            scale=1.0,
            initial_state=None,
            initial_state_indices=None,
            cu_seqlens=torch.tensor([0, 64 * chunks]),
            A_log=torch.zeros(HEADS),
            lower_bound=lower_bound,
        )
    return {name: found[name] for name in ("fuse_diagonal", "fuse_recompute")}


@pytest.mark.parametrize("chunks", [1, 32, 33])
def test_an_unbounded_gate_gets_no_clamped_decays(monkeypatch, chunks):
    """Kimi-Linear's gate has no lower bound. A channel may forget more than the clamp in 16
    tokens, and did in a small random model."""
    assert not any(chosen(monkeypatch, chunks, None).values())


@pytest.mark.parametrize(("chunks", "fused"), [(1, True), (32, True), (33, False)])
def test_a_bounded_gate_is_fused_as_it_was(monkeypatch, chunks, fused):
    """Kimi-K3's is at least -5: 108 powers of two in 15 steps, which the clamp leaves alone."""
    assert {*chosen(monkeypatch, chunks, -5.0).values()} == {fused}
