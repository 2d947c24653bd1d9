"""NemotronH and other models with recurrent states on a rank without requests, under data-parallel
attention: the release's own layer and metadata, on the CPU."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from host import graph, late, replayed, state_pool

with late.modules():
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.model_executor import forward_batch_info as info
    from sglang.srt.models import nemotron_h

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.21")
REQUEST = 4  # tokens


def idle(tokens):
    """A batch as ForwardBatch.prepare_mlp_sync_batch leaves it where the rank has no request and
    another rank prefills: one made-up request of as many tokens, number 0, which no other has."""
    batch = graph.batch_of([tokens], [0], req_pool_indices=torch.arange(1))
    batch._original_batch_size = 0
    batch.num_token_non_padded_cpu = tokens
    return batch


@pytest.fixture
def layer(build_model):
    """The first layer of a NemotronH, a Mamba2 mixer."""
    return build_model("nemotron_h", device="cpu", pattern="M-M*M-").model.layers[0]


def test_a_rank_without_requests_runs_no_mixer(layer, monkeypatch):
    """It did: the server died at "got split_sizes=[1, -1]", or wrote into a slot of the pool."""
    monkeypatch.setattr(nemotron_h, "get_attn_backend", lambda: pytest.fail("the mixer ran"))
    rows = torch.randn(REQUEST, 128, dtype=torch.bfloat16)
    output = layer._forward_mamba(rows, idle(REQUEST))
    assert output.shape == rows.shape and not output.any()


@pytest.mark.parametrize("own", [None, 1], ids=["alone", "a rank with a request"])
def test_others_run_it(layer, monkeypatch, own):
    monkeypatch.setattr(nemotron_h, "get_attn_backend", MagicMock(side_effect=EOFError))
    batch = idle(REQUEST)
    batch._original_batch_size = own
    with pytest.raises(EOFError):
        layer._forward_mamba(torch.randn(REQUEST, 128, dtype=torch.bfloat16), batch)


@pytest.mark.parametrize("mode, slot", [("EXTEND", 101), ("TARGET_VERIFY", -1)])
def test_a_made_up_prefill_has_the_slot_of_request_0(mode, slot):
    """Kernels of decodes and drafts skip slot -1; for those of prefills it is in front of the pool.
    On 0.5.16 Qwen3-Next's server died: "an illegal memory access was encountered"."""
    kind = hybrid_linear_attn_backend.MambaAttnBackendBase
    backend, batch = kind.__new__(kind), idle(REQUEST)
    backend.device, backend.topk, backend.req_to_token_pool = "cpu", 0, state_pool.Named()
    batch.forward_mode = getattr(info.ForwardMode, mode)
    batch.spec_info = MagicMock(draft_token_num=REQUEST)
    assert backend._forward_metadata(batch).mamba_cache_indices.tolist() == [slot]


@pytest.mark.revision("<0.5.18")
@pytest.mark.parametrize("own", [0, 1, None])
@pytest.mark.parametrize("kind", ["piecewise", "breakable"])
def test_breaks_of_a_graph_know_how_many_requests_are_the_ranks_own(kind, own):
    """The runner makes the batch that they read, and left it out: the server died at "got
    split_sizes=[15, -1]". Up to 0.5.20 through a captured graph: test_breakable_replays.py."""
    told, tokens = [], torch.arange(REQUEST)
    given = dict(input_ids=tokens, positions=tokens, out_cache_loc=tokens)
    batch = graph.prefill_batch(REQUEST, batch_size=1, seq_lens=torch.tensor([REQUEST]), **given)
    batch._original_batch_size = own
    replayed.Replays(kind, replayed.NoAttention(), told.append).run(batch)
    assert told[0]._original_batch_size == own


@pytest.mark.parametrize(
    "rows, decodes",
    [pytest.param((REQUEST, 0, 1), True, id="decodes"), pytest.param((REQUEST, 0, 0), False)],
)
def test_a_rank_decodes_beside_one_without_requests(layer, monkeypatch, rows, decodes):
    """Its batch became a prefill, which the release allows an empty one alone: "extend-idle
    conversion expects an empty rank". The third rank's, up to where it is padded."""
    told = MagicMock(**{"cuda_graph_config.prefill.bs": [], "elastic_ep_backend": None})
    runner = MagicMock(server_args=told, is_draft_worker=False)
    flag = hasattr(dp_attention, "_DP_MAX_LEN_WITH_IDLE")  # NemotronH's, from its pattern
    where = (dp_attention,) if flag else (dp_attention.get_flags().dp,)
    monkeypatch.setattr(*where, "_DP_MAX_LEN_WITH_IDLE" if flag else "max_len_with_idle", True)
    monkeypatch.setattr(dp_attention, "get_attention_dp_size", lambda: len(rows))
    third = SimpleNamespace(attn_tp_size=1, attn_dp_rank=2, attn_cp_size=1)
    monkeypatch.setattr(info, "get_parallel", lambda: third)
    for name in ("set_dp_buffer_len", "set_is_extend_in_batch", "mambaish_config"):
        monkeypatch.setattr(info, name, MagicMock(), raising=False)
    monkeypatch.setattr(info, "get_exec", lambda: MagicMock(graph=told), raising=False)
    monkeypatch.setattr(info.ForwardBatch, "_pad_inputs_to_size", MagicMock(side_effect=EOFError))
    batch = graph.prefill_batch(
        rows[2], forward_mode=info.ForwardMode.DECODE, is_extend_in_batch=True
    )
    batch.batch_size = rows[2]
    batch.seq_lens = batch.orig_seq_lens = torch.full((rows[2],), 7)
    batch.global_num_tokens_cpu = batch.global_num_tokens_for_logprob_cpu = list(rows)
    with pytest.raises(EOFError):
        batch.prepare_mlp_sync_batch(runner)
    assert batch.forward_mode.is_decode() == decodes
    assert batch.dp_padding_mode.is_max_len() != decodes
