"""The Mamba2 states that decoding leaves for the prefix cache, in a graph below the largest."""

from types import SimpleNamespace

import pytest
import torch
from host import graph, late, process, state_pool

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.model_executor import forward_batch_info

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.17")

LARGEST, SLOTS = 8, 40


@pytest.fixture
def attention(monkeypatch):
    """The release's Mamba2 backend, for graphs of up to LARGEST requests; a state is one number."""
    process.use_server_args(process.default_server_args())
    kept = SimpleNamespace(conv=[torch.arange(SLOTS)], temporal=torch.arange(SLOTS))
    made = state_pool.backend(hybrid_linear_attn_backend.Mamba2AttnBackend, kept)
    monkeypatch.setattr(hybrid_linear_attn_backend, "track_mamba_states_if_needed", copy_states)
    made.init_cuda_graph_state(LARGEST, LARGEST)
    return made


def copy_states(conv, ssm, sources, mask, targets, count, **_):
    """As the kernel of that name, a program for each request."""
    for request in range(count):
        if mask[request]:
            for states in (conv, ssm):
                states[targets[request]] = states[sources[request]]


def decode(attention, requests, slots, tracked):
    """One step in the graph; `tracked` of the requests leave their present state in their slot."""
    batch = graph.batch_of(
        [1] * len(requests),
        [255] * len(requests),
        forward_mode=forward_batch_info.ForwardMode.DECODE,
        extend_num_tokens=None,
        req_pool_indices=torch.tensor(requests),
        seq_lens_cpu=torch.full((len(requests),), 256),
        mamba_track_indices=torch.tensor(slots),
        mamba_track_mask=torch.tensor(tracked),
    )
    attention.init_forward_metadata_out_graph(batch)
    mixer = SimpleNamespace(forward=lambda **_: (None, None))
    attention.forward(mixer, None, None, layer_id=0, forward_batch=batch)
    layer = attention.req_to_token_pool.mamba2_layer_cache(0)
    return layer.conv[0].tolist(), layer.temporal.tolist()


def test_each_request_leaves_its_own_state(attention):
    wanted = list(range(SLOTS))
    wanted[21], wanted[23] = 1, 3
    found = decode(attention, [1, 2, 3], [21, 22, 23], [True, False, True])
    assert found == (wanted, wanted)


def test_the_slots_of_a_larger_batch_before_are_left_alone(attention):
    requests, slots = list(range(1, LARGEST + 1)), list(range(21, 21 + LARGEST))
    decode(attention, requests, slots, [False] * LARGEST)
    wanted = list(range(SLOTS))
    wanted[31] = 9
    assert decode(attention, [9, 10], [31, 32], [True, False]) == (wanted, wanted)
