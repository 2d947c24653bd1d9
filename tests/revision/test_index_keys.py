"""Keys of a sparse attention's indexer: how the release turns, writes and reads them."""

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.layers.attention.nsa import nsa_indexer
    from sglang.srt.mem_cache import memory_pool

GUARDED = pytest.mark.revision(">=0.5.11,<0.5.13")  # the write-back compares addresses
ROPE = 4
FIRST_LAYER, LAYER = 3, 5


@pytest.fixture(autouse=True)
def whole_circle():
    """On 0.5.5 linear layers and quantization import each other: this order works."""
    importlib.import_module("sglang.srt.layers.quantization")


def in_place(positions, query, key):
    """A RoPE that writes both, one behind the other, as the CUDA kernel does. Here it adds."""
    query += positions[:, None]
    key += positions[:, None]
    return query, key


@pytest.mark.patch("nsa/turn-index-keys-once")
@pytest.mark.revision(">=0.5.5,<0.5.19")
def test_a_key_is_turned_once(monkeypatch):
    """That of a prompt that needs no queries."""
    attention = "sglang.srt.layers.attention"  # with the latter up to 0.5.12
    module = late.first(f"{attention}.dsa.dsa_indexer", f"{attention}.nsa.nsa_indexer")
    monkeypatch.setattr(module, "rotate_activation", lambda key: key)
    update = getattr(module.Indexer, "_update_rope_guarded", None)
    indexer = SimpleNamespace(
        wk=lambda x: (x.clone(), None),
        k_norm=lambda key: key,
        rope_head_dim=2,
        head_dim=6,
        rotary_emb=in_place,
        fuse_wk_and_weights_proj=False,  # on 0.5.5
        _update_rope_guarded=update,
    )
    x, positions = torch.zeros(3, 6), torch.tensor([1.0, 2.0, 3.0])
    compute = module.Indexer._get_k_bf16
    asked = dict(x=x, positions=positions, enable_dual_stream=False)
    taken = {name: asked[name] for name in inspect.signature(compute).parameters if name in asked}
    key = compute(indexer, **taken)
    assert key[:, :2].eq(positions[:, None]).all() and not key[:, 2:].any()


@pytest.mark.revision(">=0.5.5,<0.5.19")
def test_deepseeks_kernel_is_the_one_that_writes_in_place():
    """Its own RoPE scales the angles alone."""
    package = "sglang.srt.layers.rotary_embedding"  # a module up to 0.5.9
    module = late.first(f"{package}.rope_variant", package)
    scaled = module.DeepseekScalingRotaryEmbedding
    assert scaled.forward_cuda is module.RotaryEmbedding.forward_cuda


@pytest.mark.revision(">=0.5.5,<0.5.10")
def test_an_index_turns_halves_against_each_other(monkeypatch):
    """0.5.5 turned neighbours, as the attention beside the index does."""
    made, arguments = {}, SimpleNamespace(device="cpu", pp_size=1)
    monkeypatch.setattr(nsa_indexer, "get_rope_wrapper", lambda *_, **words: made.update(words))
    monkeypatch.setattr(nsa_indexer, "ReplicatedLinear", lambda *_, **__: torch.nn.Identity())
    monkeypatch.setattr(nsa_indexer, "get_global_server_args", lambda: arguments)
    monkeypatch.setattr(nsa_indexer, "is_nsa_enable_prefill_cp", lambda: False, raising=False)
    sizes = dict(hidden_size=8, index_n_heads=2, index_head_dim=6, rope_head_dim=2, index_topk=4)
    more = dict(q_lora_rank=4, max_position_embeddings=16, rope_theta=1e4, layer_id=0)
    nsa_indexer.Indexer(**sizes, **more, scale_fmt=None)
    assert made["is_neox_style"]


def write_back(key, rotated):
    nsa_indexer.Indexer._update_rope_guarded(key[..., :ROPE], rotated)
    return key * 2


@pytest.mark.patch("nsa/skip-rope-pointer-check")
@GUARDED
@pytest.mark.parametrize("in_place", [False, True])
def test_a_full_graph_compile_writes_the_rotated_keys_back(in_place):
    """Compiling a DeepSeek-V3.2 indexer stopped at the address comparison. With an in-place rope
    kernel the rotated keys already are where they belong."""
    key = torch.arange(3 * 2 * ROPE, dtype=torch.float32).view(3, 2 * ROPE)
    rotated = key[..., :ROPE] if in_place else -torch.ones(3, ROPE)
    expected = torch.cat([rotated, key[..., ROPE:]], dim=-1)

    result = torch.compile(write_back, fullgraph=True, backend="aot_eager")(key, rotated)

    torch.testing.assert_close(key, expected)
    torch.testing.assert_close(result, expected * 2)


@GUARDED
def test_eager_still_skips_the_copy_onto_itself():
    key = torch.ones(3, 2 * ROPE)
    before = key._version
    write_back(key, key[..., :ROPE])
    assert key._version == before, "the same memory was written again"
    write_back(key, torch.zeros(3, ROPE))
    assert key[..., :ROPE].eq(0).all() and key[..., ROPE:].eq(1).all()


@pytest.mark.revision(">=0.5.9,<0.5.10")
def test_keys_are_read_behind_the_load_of_their_layer(monkeypatch):
    """That of a layer that is loaded from the host."""
    order = []
    pool = SimpleNamespace(
        start_layer=FIRST_LAYER,
        index_k_with_scale_buffer=["keys"] * (LAYER + 1 - FIRST_LAYER),
        layer_transfer_counter=SimpleNamespace(wait_until=lambda layer: order.append(layer)),
    )
    accessor = memory_pool.index_buf_accessor.GetKAndS
    monkeypatch.setattr(accessor, "execute", lambda *_, **__: order.append("read"))
    read = memory_pool.NSATokenToKVPool.get_index_k_scale_buffer
    read(pool, LAYER, 64, None)
    assert order == [LAYER - FIRST_LAYER, "read"]
    pool.layer_transfer_counter = None  # without a cache on the host
    read(pool, LAYER, 64, None)
    assert order[2:] == ["read"]
