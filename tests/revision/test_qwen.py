"""Qwen3-Next's packed projections cut by rank, gates of Qwen3.5 that are views, and the token that
drafts read behind a chunk of a prompt with an image."""

from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late

with late.modules():
    from sglang.srt.layers import linear
    from sglang.srt.layers import parameter as layers_parameter
    from sglang.srt.layers.attention.fla import fused_gdn_gating, fused_sigmoid_gating_recurrent
    from sglang.srt.managers import schedule_batch
    from sglang.srt.models import qwen3_5, qwen3_next
    from sglang.srt.sampling import sampling_params

PACKED = pytest.mark.revision(">=0.5.10,<0.5.11")
BLOCK, KEYS, VALUES, RANKS = 4, 4, 8, 2
# of one head group: q, k, and v and z of its value heads
GROUP = 2 * BLOCK + 2 * VALUES // KEYS * BLOCK
VOCABULARY = 100
IMAGE = 1_000_003  # as the release marks the places of an image


def loaded(rank):
    """The rank's weight and block scales from a checkpoint whose rows and blocks are numbered."""
    outputs = [KEYS * BLOCK] * 2 + [VALUES * BLOCK] * 2
    layer = linear.MergedColumnParallelLinear(
        BLOCK, outputs, bias=False, tp_rank=rank, tp_size=RANKS, params_dtype=torch.float32
    )
    rows = KEYS * GROUP // RANKS
    dimensions = dict(input_dim=1, output_dim=0, weight_loader=layer.weight_loader_v2)
    layer.weight = layers_parameter.ModelWeightParameter(
        data=torch.zeros(rows, BLOCK), **dimensions
    )
    layer.weight_scale_inv = layers_parameter.BlockQuantScaleParameter(
        data=torch.zeros(rows // BLOCK, 1), **dimensions
    )
    layer.quant_method.quant_config = SimpleNamespace(weight_block_size=[BLOCK, BLOCK])
    qwen3_next.Qwen3GatedDeltaNet._override_weight_loader(
        layer, qwen3_next.Qwen3GatedDeltaNet._make_packed_weight_loader(layer)
    )
    for parameter in (layer.weight, layer.weight_scale_inv):
        whole = torch.arange(RANKS * len(parameter), dtype=torch.float32)
        parameter.weight_loader(parameter, whole[:, None].expand(-1, parameter.shape[1]))
    return layer.weight[:, 0].tolist(), layer.weight_scale_inv[:, 0].tolist()


@PACKED
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_has_the_scales_of_its_own_rows(rank):
    weight, scales = loaded(rank)
    assert weight == list(range(rank * len(weight), (rank + 1) * len(weight)))
    assert scales == list(range(rank * len(scales), (rank + 1) * len(scales)))


WIDTH = 16  # of a key head and of a value head


def split(rows, keys, values):
    """mixed qkv, b and a of a layer of Qwen3.5 with these numbers of heads; b and a are views."""
    layer = SimpleNamespace(
        attn_tp_size=1,
        key_dim=keys * WIDTH,
        value_dim=values * WIDTH,
        num_v_heads=values,
        head_v_dim=WIDTH,
    )
    query, key, value, _, b, a = qwen3_5.Qwen3_5GatedDeltaNet.fix_query_key_value_ordering(
        layer, torch.randn(rows, 2 * (keys + values) * WIDTH), torch.randn(rows, 2 * values)
    )
    heads = [part.reshape(1, rows, -1, WIDTH).contiguous() for part in (query, key, value)]
    return heads, a, b


def compare(rows, keys, values, requests):
    """Largest differences of the gates of a prefill, and of the outputs of a step in which each of
    `requests` has rows / requests drafts."""
    torch.manual_seed(3)
    (query, key, value), a, b = split(rows, keys, values)
    assert not a.is_contiguous() and not b.is_contiguous()
    log_decays, bias = torch.randn(values), torch.randn(values)
    states = torch.randn(requests, values, WIDTH, WIDTH)

    def prefill(a, b):
        return torch.cat(fused_gdn_gating.fused_gdn_gating(log_decays, a, b, bias))

    def verify(a, b):
        return fused_sigmoid_gating_recurrent.fused_sigmoid_gating_delta_rule_update(
            A_log=log_decays,
            a=a,
            dt_bias=bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=query,
            k=key,
            v=value,
            b=b,
            initial_state_source=states.clone(),
            initial_state_indices=torch.arange(requests, dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=torch.arange(0, rows + 1, rows // requests),
        )

    return {
        step.__name__: float((step(a, b) - step(a.clone(), b.clone())).abs().max())
        for step in (prefill, verify)
    }


@PACKED
def test_gates_that_are_views_are_read_as_tensors_of_their_own_are():
    cases = {
        "three value heads for each key head": dict(rows=6, keys=2, values=6, requests=2),
        "more heads than a block has": dict(rows=4, keys=4, values=12, requests=4),
    }
    results = interpreted.run(__name__, cases)
    for case, differences in results.items():
        assert differences == {"prefill": 0.0, "verify": 0.0}, case


@pytest.mark.revision(">=0.5.13,<0.5.14")
@pytest.mark.parametrize("end", range(1, 11))
def test_the_draft_model_reads_no_place_of_an_image(end):
    """Five tokens of text, four places of an image, one token of text."""
    prompt = schedule_batch.Req(
        "one",
        "",
        [1, 2, 3, 4, 5, IMAGE, IMAGE, IMAGE, IMAGE, 6],
        sampling_params.SamplingParams(),
        vocab_size=VOCABULARY,
    )
    prompt.fill_len = end
    expected = {**dict(enumerate([1, 2, 3, 4, 5])), 9: 6}.get(end)
    assert schedule_batch._compute_chunked_req_next_prompt_token(prompt) == expected
