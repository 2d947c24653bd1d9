"""Keys of a sparse attention's indexer for a prompt that needs no queries: the release's own."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from host import late

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.19")


def in_place(positions, query, key):
    """A RoPE that writes both, one behind the other, as the CUDA kernel does. Here it adds."""
    query += positions[:, None]
    key += positions[:, None]
    return query, key


def test_a_key_is_turned_once(monkeypatch):
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
        _update_rope_guarded=update,
    )
    x, positions = torch.zeros(3, 6), torch.tensor([1.0, 2.0, 3.0])
    compute = module.Indexer._get_k_bf16
    asked = dict(x=x, positions=positions, enable_dual_stream=False)
    taken = {name: asked[name] for name in inspect.signature(compute).parameters if name in asked}
    key = compute(indexer, **taken)
    assert key[:, :2].eq(positions[:, None]).all() and not key[:, 2:].any()
