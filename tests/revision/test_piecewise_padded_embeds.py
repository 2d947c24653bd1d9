"""What the piecewise runner leaves in the padded rows of input_embeds before a replay."""

from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.model_executor import forward_batch_info, piecewise_cuda_graph_runner

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.11")

CAPTURED = 8


def prepare(num_tokens, hidden_size):
    """The real replay_prepare on a runner without a GPU; returns its buffer of embeddings, full of
    ones before."""
    runner = object.__new__(piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner)
    runner.buffers = runner  # 0.5.10 keeps them in an object, 0.5.9 in the runner
    runner.capture_num_tokens = [CAPTURED // 2, CAPTURED]
    runner.is_multimodal = True
    runner.input_ids = torch.ones(CAPTURED, dtype=torch.int64)
    runner.positions = torch.ones(CAPTURED, dtype=torch.int64)
    runner.out_cache_loc = torch.ones(CAPTURED, dtype=torch.int64)
    runner.input_embeds = torch.ones(CAPTURED, hidden_size)
    runner.mrope_positions = torch.ones(3, CAPTURED, dtype=torch.int64)
    runner.out_cache_loc_swa = None
    runner.mamba_track_indices = None
    runner.mamba_track_mask = runner.mamba_track_seqlens = None
    runner.model_runner = SimpleNamespace(
        req_to_token_pool=None, token_to_kv_pool=None, attn_backend=None
    )
    batch = forward_batch_info.ForwardBatch(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        batch_size=1,
        input_ids=torch.full((num_tokens,), 7),
        positions=torch.arange(num_tokens),
        out_cache_loc=torch.arange(num_tokens),
        req_pool_indices=torch.zeros(1, dtype=torch.int64),
        seq_lens=torch.tensor([num_tokens]),
        seq_lens_sum=num_tokens,
    )
    static = runner.replay_prepare(batch)
    assert len(static.input_ids) == CAPTURED
    assert static.input_embeds.data_ptr() == runner.input_embeds.data_ptr()
    return runner.input_embeds


@pytest.mark.parametrize("hidden_size", [4, 16], ids=["narrow", "wide"])
def test_rows_behind_the_real_tokens_are_zero(hidden_size):
    """A shorter multimodal prefill ran with the embeddings of an earlier batch in its padded
    rows."""
    embeds = prepare(num_tokens=5, hidden_size=hidden_size)
    assert embeds[5:].eq(0).all()


@pytest.mark.parametrize("hidden_size", [4, 16], ids=["narrow", "wide"])
def test_rows_of_real_tokens_keep_all_their_features(hidden_size):
    embeds = prepare(num_tokens=5, hidden_size=hidden_size)
    assert embeds[:5].eq(1).all()


def test_nothing_is_cleared_when_nothing_is_padded():
    assert prepare(num_tokens=CAPTURED, hidden_size=16).eq(1).all()
