"""Where the release's compiler splits DeepSeek-V3.2's forward; what its backend decides then."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from host import graph, late

with late.modules():
    from sglang.srt import utils
    from sglang.srt.layers.attention import nsa_backend
    from sglang.srt.models import deepseek_v2
    from sglang.srt.prefill_graph.piecewise import nsa

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.13")
TOKENS, REAL, LAYERS = 8, 5, 3
TOPK, ATTENTION = "sglang.nsa_topk_with_output", "sglang.nsa_attention_with_output"


class NativeSparseAttnBackend:
    """Stands in for the release's: tokens attend to the mean of all; padding would spread."""

    use_mha = False

    def __init__(self):
        self.given = []

    def get_indexer_metadata(self, layer_id, forward_batch):
        return None

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache, **words):
        self.given.append(
            (
                layer.layer_id,
                {name: tuple(part.shape) for name, part in (("q", q), ("k", k), *words.items())},
            )
        )
        return (q + k).mean(0, keepdim=True) + q


@pytest.fixture
def model(build_model):
    """Three layers, two with experts; absorbed weights as loading a checkpoint leaves them."""
    made = build_model(
        "deepseek_v32",
        device="cpu",
        dtype=torch.float32,
        server_args={"prefill_attention_backend": "nsa"},
        num_hidden_layers=LAYERS,
        initializer_range=0.1,
    )
    for layer in made.model.layers:
        layer.self_attn.indexer._forward_method = layer.self_attn.indexer.forward_cuda
    made.post_load_weights()
    return made


@pytest.fixture
def traced(model, monkeypatch):
    """The model compiled, split and run by the release without its experts, and its backend."""
    monkeypatch.setattr(
        deepseek_v2.DeepseekV2MoE,
        "forward",
        lambda self, hidden_states, *_, **__: hidden_states * 0.5,
    )
    backend = NativeSparseAttnBackend()
    batch = graph.prefill_batch(TOKENS, extend_num_tokens=REAL)
    batch.attn_backend, batch.out_cache_loc = backend, batch.input_ids
    args = SimpleNamespace(piecewise_cuda_graph_tokens=[TOKENS])
    runner = SimpleNamespace(model=model, server_args=args, attn_backend=backend)
    monkeypatch.setattr(nsa.sparse, "against_sparse", lambda args: [])
    assert nsa.admit_sparse_attention(runner, by_default=False)
    attention = [layer.self_attn.attn_mqa for layer in model.model.layers]
    return graph.traced_forward(model, batch, dict(attention_layers=attention), TOKENS), backend


def test_split_at_the_indexer_and_at_the_attention_of_every_layer(traced, model):
    """Attention gets the real tokens, and what was selected."""
    result, backend = traced
    assert [piece.op for piece in result.pieces] == [
        "",
        *(op for _ in range(LAYERS) for op in (TOPK, "", ATTENTION, "")),
    ]
    assert all(piece.has_size for piece in result.pieces if not piece.op), "one trace for all sizes"
    config = model.config
    heads, rank, rope = config.num_attention_heads, config.kv_lora_rank, config.qk_rope_head_dim
    shapes = {
        "q": (REAL, heads, rank),
        "k": (REAL, 1, rank),
        "topk_indices": (REAL, config.index_topk),
        "q_rope": (REAL, heads, rope),
        "k_rope": (REAL, 1, rope),
    }
    assert backend.given[:LAYERS] == [(number, shapes) for number in range(LAYERS)]
    assert all(output.isfinite().all() for output in result.outputs)


def test_the_dense_branch_for_short_prompts_is_off_in_the_graph_only(monkeypatch):
    """A replay knows the branch that was captured: a backend that prepares the other one would
    leave it without metadata. The prompt is short, and the GPU one of Hopper's."""
    monkeypatch.setattr(utils, "get_device_sm", lambda: 90)
    batch = graph.prefill_batch(
        4, seq_lens_cpu=torch.tensor([4]), token_to_kv_pool=SimpleNamespace(dtype=torch.bfloat16)
    )
    batch.get_max_chunk_capacity = lambda: 1 << 16
    backend = SimpleNamespace(
        enable_auto_select_prefill_impl=False,
        nsa_prefill_impl="flashmla_sparse",
        nsa_index_topk=2048,
        _force_attn_forward_mla=False,
    )

    def decide():
        nsa_backend.NativeSparseAttnBackend.set_nsa_prefill_impl(backend, batch)
        return backend.use_mha

    assert decide() is True
    with (
        contextlib.suppress(ZeroDivisionError),
        graph.piecewise_context_manager.enable_piecewise_cuda_graph(),
    ):
        assert decide() is False
    assert decide() is True
