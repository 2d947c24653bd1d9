"""Qwen3.5's attention turns queries and keys of image tokens by time, height and width."""

from types import SimpleNamespace

import pytest
import torch
from host import late, process

with late.modules():
    from sglang.srt.layers import rotary_embedding
    from sglang.srt.models import qwen3_5
    from sglang.srt.prefill_graph.kernels import rope_lanes

pytestmark = pytest.mark.revision(">=0.5.15")

SECTIONS = (6, 5, 5)
CASES = {
    "image, interleaved": dict(rows=3, sections=SECTIONS, interleaved=True),
    "image, sections": dict(rows=3, sections=SECTIONS),
    "image, a graph's buffer": dict(rows=3, sections=SECTIONS, interleaved=True, room=24),
    "text, one row": dict(rows=1, sections=SECTIONS, interleaved=True),
    "text model": dict(rows=1),
}


PLACES = (
    "sglang.kernels.ops.attention.fused_qk_rmsnorm_rope_gate",
    "sglang.srt.layers.fused_qk_rmsnorm_rope_gate",
)
TOKENS, HEADS, KEY_HEADS, SIZE, TURNED, EPS = 9, 2, 1, 64, 32, 1e-6


def layer(sections, interleaved):
    """What the release's methods read of an attention layer; its projection hands its input on."""
    process.use_server_args(process.default_server_args())
    words = (SIZE, TURNED, 4096, 10000, True, torch.float32)
    rotary = (
        rotary_embedding.MRotaryEmbedding(*words, list(sections), interleaved)
        if sections
        else rotary_embedding.RotaryEmbedding(*words)
    )
    norms = {
        name: SimpleNamespace(weight=torch.randn(SIZE) / 8, variance_epsilon=EPS)
        for name in ("q_norm", "k_norm")
    }
    return SimpleNamespace(
        qkv_proj=lambda rows: (rows, None),
        rotary_emb=rotary,
        attn_output_gate=True,
        num_heads=HEADS,
        num_kv_heads=KEY_HEADS,
        head_dim=SIZE,
        q_size=HEADS * SIZE,
        kv_size=KEY_HEADS * SIZE,
        **norms,
    )


def expected(made, positions, qkv):
    """q, k and the gate in float32: Gemma's norm, then the release's own rotary embedding."""
    gated, k, _ = qkv.float().split([2 * made.q_size, made.kv_size, made.kv_size], dim=-1)
    q, gate = gated.view(TOKENS, HEADS, 2 * SIZE).chunk(2, dim=-1)

    def normed(heads, norm):
        heads = heads.reshape(TOKENS, -1, SIZE)
        scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + EPS)
        return (heads * scale * (1 + norm.weight)).reshape(TOKENS, -1)

    q, k = made.rotary_emb.forward_native(positions, normed(q, made.q_norm), normed(k, made.k_norm))
    return q, k, gate.reshape(TOKENS, -1)


def compare(rows, sections=(), interleaved=False, room=TOKENS):
    """The largest differences of q, k and the gate, and of q if only positions of time are read.

    rows: how many positions a token has; room: tokens that their buffer holds, as that of a decode
    graph.
    """
    torch.manual_seed(3)
    made = layer(sections, interleaved)
    buffer = torch.randint(0, 4096, (rows, room))
    positions = buffer[:, :TOKENS] if rows > 1 else buffer[0, :TOKENS]
    qkv = torch.randn(TOKENS, 2 * made.q_size + 2 * made.kv_size, dtype=torch.float16)
    qwen3_5.fused_qk_gemma_rmsnorm_rope_gate = late.first(*PLACES).fused_qk_gemma_rmsnorm_rope_gate
    q, k, _, gate = qwen3_5.Qwen3_5AttentionDecoderLayer.forward_prepare_cuda_fused(
        made, positions, qkv
    )
    wanted = expected(made, positions, qkv)
    times = expected(made, positions[:1].expand(rows, -1) if rows > 1 else positions, qkv)[0]

    def apart(one, other):
        return (one.float() - other).abs().max().item()

    return dict(
        apart=[apart(*pair) for pair in zip((q, k, gate), wanted)],
        by_time_alone=apart(times, wanted[0]),
    )


@pytest.mark.parametrize("case", CASES)
def test_each_lane_turns_by_its_own_position(case, compared):
    found = compared[case]
    assert max(found["apart"]) < 0.02
    assert (found["by_time_alone"] > 1) == (CASES[case]["rows"] == 3)


@pytest.mark.revision("<0.5.19")
def test_an_order_of_lanes_that_the_kernel_does_not_know_is_refused():
    rotary = SimpleNamespace(
        mrope_section=[8, 12, 12], mrope_interleaved=True, mrope_interleaved_glm=True
    )
    with pytest.raises(ValueError, match="GLM"):
        rope_lanes.of(rotary)
