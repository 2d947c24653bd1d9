"""States that the prefix cache keeps in int8 (--enable-int8-mamba-checkpoint) reach a prefill, on
its graph or not, through the pool that layers read."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.mem_cache import mamba_checkpoint_pool, memory_pool
    from sglang.srt.model_executor import forward_batch_info, model_runner

pytestmark = pytest.mark.revision(">=0.5.15")

LAYERS, HEADS, ROWS, COLUMNS, CHANNELS = 2, 3, 8, 16, 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_hit_restores_the_state_into_the_requests_own_slot(dtype):
    """The release's own functions: kept from slot 4 by the cache, given to slot 2's request."""
    torch.manual_seed(0)
    state = torch.randn(LAYERS, 6, HEADS, ROWS, COLUMNS).to(dtype)
    state *= torch.logspace(-3, 2, COLUMNS).to(dtype)
    conv = [torch.randn(LAYERS, 6, CHANNELS, 3).to(dtype)]
    active = SimpleNamespace(mamba_cache=SimpleNamespace(temporal=state, conv=conv))
    kept = mamba_checkpoint_pool.MambaCheckpointPool(
        num_layers=LAYERS,
        num_slots=4,
        num_heads=HEADS,
        head_v_dim=ROWS,
        head_k_dim=COLUMNS,
        conv_shapes=[(CHANNELS, 3)],
        conv_dtype=dtype,
        device="cpu",
        temporal_dtype=dtype,
    )
    kept.store_from_active(active, torch.tensor([4]), torch.tensor([3]))
    before = state.clone(), conv[0].clone()
    pool = memory_pool.HybridReqToTokenPool.__new__(memory_pool.HybridReqToTokenPool)
    pool.mamba_pool, pool.mamba_ckpt_pool = active, kept
    batch = SimpleNamespace(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        mamba_clear_indices=None,
        mamba_cow_src_indices=torch.tensor([3]),
        mamba_cow_dst_indices=torch.tensor([2]),
    )
    runner = SimpleNamespace(req_to_token_pool=pool, is_draft_worker=False)
    model_runner.ModelRunner._maybe_execute_deferred_mamba_cow_and_clear(runner, batch)
    wanted = before[0][:, 4].float()
    # half a step of a column's 127, and the type's rounding of the step
    step = wanted.abs().amax(-2, keepdim=True) / 127
    limit = step * (0.5 + 128 * torch.finfo(dtype).eps) + torch.finfo(dtype).tiny
    assert ((state[:, 2].float() - wanted).abs() <= limit).all()
    assert torch.equal(conv[0][:, 2], before[1][:, 4]) and state.dtype == dtype
    others = [slot for slot in range(6) if slot != 2]
    assert torch.equal(state[:, others], before[0][:, others])


def test_the_state_is_there_before_a_graph_is_chosen():
    text = inspect.getsource(model_runner.ModelRunner._forward_raw)
    restored = text.index("_maybe_execute_deferred_mamba_cow_and_clear(")
    assert restored < text.index("prefill_cuda_graph_runner.can_run_graph(")
