"""The states that lightning attention leaves for the prefix cache, by the release's own backend and
interpreted kernels.

The plain recurrence runs on the tokens that each state stands for: s <- exp(-slope) s + k v for
each token (Qin et al., Lightning Attention-2, 2024), and what a token reads is q s.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from host import graph, late, state_pool
from host.references import mamba2

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as module
    from sglang.srt.layers.attention.linear import lightning_backend
    from sglang.srt.model_executor import forward_batch_info

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.17")

DECODING = dict(lengths=[1, 1, 1], prefixes=[31, 40, 47], decoded=[True, False, True])
# what a request leaves is its state behind its last whole chunk
CASES = {
    "behind cached beginnings, one too short": dict(
        lengths=[21, 5, 48, 35], prefixes=[16, 0, 0, 32]
    ),
    "one token behind a chunk, each": dict(lengths=[17, 33], prefixes=[0, 16]),
    "none leaves a state": dict(lengths=[3, 9], prefixes=[0, 16]),
    "decoding": DECODING,
    "decoding in a graph": DECODING | dict(largest=8),
}


CHUNK, HEADS, SIZE = 16, 2, 128


def compare(
    lengths: list[int], prefixes: list[int], decoded: list[bool] | None = None, largest: int = 0
) -> Any:
    """New tokens and cached ones of each request. decoded: which requests of a step of decoding
    leave their state, in place of a prefill (lengths are all 1 then). largest: prepared for a
    graph, where the largest has so many requests.

    Returns what mamba2.judge does.
    """
    torch.manual_seed(3)
    count, tokens = len(lengths), sum(lengths)
    states = torch.randn(2 * count + 2, HEADS, SIZE, SIZE)
    before, attention = states.clone(), _backend(states)
    q, k, v = (0.2 * torch.randn(tokens, HEADS, SIZE) for _ in range(3))
    mask = decoded or [length >= CHUNK for length in lengths]
    batch = _batch(lengths, prefixes, mask, decoded is not None)
    if largest:
        attention.init_cuda_graph_state(largest, largest)
        attention.init_forward_metadata_out_graph(batch)
    else:
        attention.init_forward_metadata(batch)
    layer = SimpleNamespace(
        layer_id=0, tp_q_head_num=HEADS, head_dim=SIZE, v_head_dim=SIZE, k_scale=None
    )
    run = attention.forward_decode if decoded else attention.forward_extend
    outputs = run(q, k, v, layer, batch).view(tokens, HEADS, SIZE)

    def plain(i: int, rows: slice) -> Any:
        old = before[i + 1] * bool(prefixes[i])
        return _recurrence(q[rows], k[rows], v[rows], old, attention.tp_slope[0])

    kept = {i: 1 if decoded else length - length % CHUNK for i, length in enumerate(lengths)}
    kept = {i: tokens for i, tokens in kept.items() if mask[i]}
    return mamba2.judge(plain, outputs, [states], [before], lengths, kept)


def _backend(states: torch.Tensor) -> Any:
    state_pool.keep_steps(CHUNK, module)
    kept = SimpleNamespace(conv=[torch.zeros(len(states), 1, 1)], temporal=states)
    made = state_pool.backend(lightning_backend.LightningAttentionBackend, kept)
    made.kv_cache_dtype_str, made.linear_backend = "auto", "seg_la"
    made.conv_states_shape = kept.conv[0].shape
    made.tp_slope = torch.tensor([[0.3, 0.02]])
    return made


def _batch(lengths: list[int], prefixes: list[int], mask: list[bool], decoded: bool) -> Any:
    count, asked = len(lengths), torch.tensor(mask)
    lengths_behind = torch.tensor(lengths) + torch.tensor(prefixes)
    fields = dict(
        seq_lens_cpu=lengths_behind,
        mamba_track_mask=asked,
        mamba_track_indices=torch.arange(count + 1, 2 * count + 1),
    )
    if decoded:
        mode = forward_batch_info.ForwardMode.DECODE
        fields |= dict(forward_mode=mode, extend_num_tokens=None)
    else:
        fields |= dict(mamba_track_seqlens=torch.where(asked, lengths_behind, -1))
    return graph.batch_of(lengths, prefixes, **fields)


def _recurrence(q: Any, k: Any, v: Any, state: torch.Tensor, slopes: torch.Tensor) -> Any:
    outputs = []
    for one_q, one_k, one_v in zip(q, k, v, strict=True):
        state = state * torch.exp(-slopes)[:, None, None] + one_k[:, :, None] * one_v[:, None, :]
        outputs.append((one_q[:, :, None] * state).sum(1) * SIZE**-0.5)
    return torch.stack(outputs), state


@pytest.mark.parametrize("case", CASES)
def test_every_state_is_that_of_the_requests_own_tokens(case, compared):
    """Those that are left, and those that requests go on with. Largest differences in float32;
    states are of order 4, outputs of order 0.1."""
    found = compared[case]
    assert found["others"] == 0
    assert all(apart < 1e-4 for apart in sum(found["left"].values(), found["own"])), found
