"""The gated delta net states that a prefill leaves for the prefix cache.

The release's own backend, layer and interpreted kernels run, in several layers after each other.
The plain reference runs on the tokens that each state stands for.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from packaging.version import Version

from host import graph, interpreted, state_pool, waits
from host.references import gdn, gdn_layer, mamba2
from host.served import published

LAYERS, CHUNK, WIDTH, TYPE = 2, 64, 3, gdn_layer.TYPE
CONTEXTS = {"get_forward_context", "get_tc_piecewise_forward_context"}  # the latter from 0.5.14
# Its pool holds [heads, value, key].
TRANSPOSED = Version(os.environ["PATCHQUEUE_REVISION"]) >= Version("0.5.10")


def compare(lengths: list[int], prefixes: list[int], step: int = CHUNK) -> dict[str, Any]:
    """New tokens and cached ones of each request, in LAYERS layers that have a pool of states each.

    step: of how many tokens a multiple the prefix cache keeps states for.

    Returns `waits`: for each layer the ops in which a host would wait for its GPU. `own` is the
    largest difference of outputs and of the states that requests go on with, `left` that of the
    states that they leave. `others`: how many slots that nobody writes to have changed.
    """
    torch.manual_seed(2)
    # as the scheduler does: a request leaves its state behind its last whole chunk, if any
    wanted = [length if length >= step else -1 for length in lengths]
    said = graph.said_of(lengths, prefixes, wanted)
    layer, batch = layer_on_one_stream(), graph.batch_of(lengths, prefixes, **said)
    pools = [_pool(layer, prefixes) for _ in range(LAYERS)]
    linear = backend(batch, pools[0], step)
    found: dict[str, Any] = dict(waits=[], own=0.0, left=0.0, others=0)
    inputs = [torch.randn(sum(lengths), 128).to(TYPE) for _ in pools]
    before, outputs = [tuple(states.clone() for states in pool) for pool in pools], []

    linear.init_forward_metadata(batch)
    for pool, hidden_states in zip(pools, inputs, strict=True):
        linear.req_to_token_pool.mamba2_layer_cache = _kept(*pool)
        with torch.no_grad(), published(linear), waits.MaskReads() as reads:
            outputs.append(getattr(layer, "_forward", layer.forward)(hidden_states, batch))
        found["waits"].append(reads.names)
    for pool, then, hidden_states, output in zip(pools, before, inputs, outputs, strict=True):
        pool, then = ((conv, _plain(state)) for conv, state in (pool, then))
        kept = {i: n // step * step for i, n in enumerate(lengths) if n >= step}
        plain = gdn.plain(layer, hidden_states, then, prefixes)
        judged = mamba2.judge(plain, output, pool, then, lengths, kept)
        found["others"] += judged["others"]
        found["own"] = max(found["own"], *judged["own"])
        found["left"] = max(found["left"], *sum(judged["left"].values(), [0.0]))
    return found


def layer_on_one_stream(**changes: Any) -> Any:
    """gdn_layer.layer; up to 0.5.9 a short batch is projected on two, of which a CPU has none."""
    layer = gdn_layer.layer(**changes)
    layer._forward_input_proj = lambda rows: (
        layer.in_proj_qkvz(rows)[0],
        layer.in_proj_ba(rows)[0],
    )
    return layer


def _pool(layer: Any, prefixes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """States of nobody, of the requests (cleared where they begin), and of the prefix cache."""
    slots = 2 * len(prefixes) + 1
    conv = torch.randn(slots, layer.conv_dim, WIDTH).to(TYPE)
    state = 0.1 * torch.randn(slots, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)
    for slot, cached in enumerate(prefixes, 1):
        state[slot] *= bool(cached)
    return conv, state


def _kept(conv: torch.Tensor, state: torch.Tensor) -> Callable[[int], Any]:
    from sglang.srt.mem_cache.memory_pool import MambaPool

    kept = MambaPool.State(conv=[conv], temporal=state)
    return lambda layer_id: kept


def backend(batch: Any, pool: tuple[torch.Tensor, torch.Tensor], step: int = CHUNK) -> Any:
    """The release's backend, as its set-up on an NVIDIA GPU leaves it."""
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as module

    try:
        from sglang.srt.layers import radix_linear_attention
    except ImportError:  # from 0.5.9
        pass
    else:  # the op that a graph breaks at does as eager layers do, with the batch that it looks up
        for name in CONTEXTS & set(vars(radix_linear_attention)):
            setattr(radix_linear_attention, name, lambda: None)
    fla = gdn_layer.fla()
    norm = importlib.import_module(f"{fla}.layernorm_gated")
    norm._get_sm_count = lambda device: 1  # from 0.5.9; it asks CUDA
    from sglang.srt.model_executor import forward_batch_info

    state_pool.keep_steps(step, module, forward_batch_info)  # the latter asks from 0.5.20 on
    try:
        from sglang.srt.layers.attention.linear import gdn_backend
        from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel
    except ImportError:
        made = state_pool.backend(module.GDNAttnBackend, None)
    else:
        made = state_pool.backend(gdn_backend.GDNAttnBackend, None)
        made.kernel_dispatcher = TritonGDNKernel()
        made.kernel_dispatcher.extend_uses_state_checkpoints = False  # asked from 0.5.17 on
        made.kernel_dispatcher.extend_kernel = made.kernel_dispatcher  # asked on 0.5.23
    interpreted.resolve_late(fla)
    interpreted.choose_first_configs(fla)
    made.conv_states_shape = pool[0].shape
    made._mamba_chunk_size, made._use_strided_target_verify_qkv = CHUNK, False  # from 0.5.19
    made.mis_metadata, made.enable_mis = None, False
    made.forward = made.forward_extend
    batch.attn_backend = made
    return made


def _plain(state: torch.Tensor) -> torch.Tensor:
    return state.transpose(-1, -2) if TRANSPOSED else state
