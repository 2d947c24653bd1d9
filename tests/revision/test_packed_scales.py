"""How ranks of tensor parallelism cut the packed projections of Qwen3-Next's delta nets."""

from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.layers import linear
    from sglang.srt.layers import parameter as layers_parameter
    from sglang.srt.models import qwen3_next

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.11")
BLOCK, KEYS, VALUES, RANKS = 4, 4, 8, 2
# of one head group: q, k, and v and z of its value heads
GROUP = 2 * BLOCK + 2 * VALUES // KEYS * BLOCK


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


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_rank_has_the_scales_of_its_own_rows(rank):
    weight, scales = loaded(rank)
    assert weight == list(range(rank * len(weight), (rank + 1) * len(weight)))
    assert scales == list(range(rank * len(scales), (rank + 1) * len(scales)))
