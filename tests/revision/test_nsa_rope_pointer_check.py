"""The NSA indexer's rope write-back, eager and under torch.compile."""

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.layers.attention.nsa import nsa_indexer

pytestmark = pytest.mark.revision(">=0.5.11,<0.5.13")

ROPE_DIM = 4


def write_back(key, rotated):
    nsa_indexer.Indexer._update_rope_guarded(key[..., :ROPE_DIM], rotated)
    return key * 2


def test_a_full_graph_compile_writes_the_rotated_keys_back():
    """Compiling a DeepSeek-V3.2 indexer stopped at the address comparison."""
    key, rotated = torch.zeros(3, 2 * ROPE_DIM), torch.ones(3, ROPE_DIM)
    compiled = torch.compile(write_back, fullgraph=True, backend="aot_eager")

    result = compiled(key, rotated)

    expected = torch.cat([torch.ones(3, ROPE_DIM), torch.zeros(3, ROPE_DIM)], dim=-1)
    torch.testing.assert_close(key, expected)
    torch.testing.assert_close(result, expected * 2)


def test_a_compiled_write_onto_itself_changes_nothing():
    """With an in-place rope kernel the rotated keys already are where they belong."""
    key = torch.arange(3 * 2 * ROPE_DIM, dtype=torch.float32).view(3, 2 * ROPE_DIM)
    before = key.clone()
    compiled = torch.compile(write_back, fullgraph=True, backend="aot_eager")

    result = compiled(key, key[..., :ROPE_DIM])

    torch.testing.assert_close(key, before)
    torch.testing.assert_close(result, before * 2)


def test_eager_still_skips_the_copy_onto_itself():
    key = torch.ones(3, 2 * ROPE_DIM)
    before = key._version
    write_back(key, key[..., :ROPE_DIM])
    assert key._version == before, "the same memory was written again"
    write_back(key, torch.zeros(3, ROPE_DIM))
    assert key[..., :ROPE_DIM].eq(0).all() and key[..., ROPE_DIM:].eq(1).all()
