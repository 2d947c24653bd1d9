"""A gated delta net inside a recorded graph, through upstream's hook for linear attention, beside
an eager prefill of the same backend. Backend and kernels are the release's, the latter interpreted.
"""

from types import SimpleNamespace
from typing import Any

import torch

from host import graph, recorded
from host.references import compare_captured_model

TYPE, CHUNK, SLOTS = torch.float16, 64, 12
HEADS, VALUE_HEADS, SIZE = 1, 2, 64
CHANNELS = (2 * HEADS + VALUE_HEADS) * SIZE


def net() -> Any:
    """A layer that asks the backend, as models hold it."""
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention

    torch.manual_seed(4)
    return RadixLinearAttention(
        layer_id=0,
        num_q_heads=HEADS,
        num_k_heads=HEADS,
        num_v_heads=VALUE_HEADS,
        head_q_dim=SIZE,
        head_k_dim=SIZE,
        head_v_dim=SIZE,
        conv_weights=torch.randn(CHANNELS, 4).to(TYPE) / 2,
        bias=None,
        activation="silu",
        A_log=torch.rand(VALUE_HEADS),
        dt_bias=torch.rand(VALUE_HEADS),
    )


def backend(tracks: bool) -> Any:
    """The release's backend on a pool of random states; request i has slot i + 1."""
    torch.manual_seed(5)
    conv = torch.randn(SLOTS, CHANNELS, 3).to(TYPE)
    states = 0.1 * torch.randn(SLOTS, VALUE_HEADS, SIZE, SIZE)
    kept = {0: SimpleNamespace(conv=[conv], temporal=states)}
    made = compare_captured_model.backend(kept)
    made.req_to_token_pool.translate_mamba_indices = lambda slots: slots
    made.mis_metadata, made.enable_mis, made._mamba_chunk_size = None, False, CHUNK
    made.kernel_dispatcher.extend_uses_state_checkpoints = False
    made._use_strided_target_verify_qkv = False
    return made


def batch_of(lengths: list[int], prefixes: list[int], kept: list[int] | None) -> Any:
    """kept: of each request, how many of its new tokens are looked at for a state to keep: the one
    behind their last whole chunk; 0: none."""
    count, cached = len(lengths), torch.tensor(prefixes)
    made = graph.batch_of(
        lengths,
        prefixes,
        req_pool_indices=torch.arange(count),
    )
    made._original_batch_size = None
    if kept is not None:
        made.mamba_track_mask = torch.tensor(kept) > 0
        ends = cached + torch.tensor(kept)
        made.mamba_track_seqlens = torch.where(made.mamba_track_mask, ends, -1)
        made.mamba_track_indices = torch.arange(count + 1, 2 * count + 1)
        made.mamba_prefill_track_mask_cpu = made.mamba_track_mask.tolist()
        made.mamba_track_seqlens_cpu = made.mamba_track_seqlens.tolist()
    return made


def compare(
    batches: list[tuple[list[int], list[int], list[int] | None]], size: int, tracks: bool = False
) -> dict[str, Any]:
    """Each batch, (lengths, prefixes, kept), on one graph of `size` tokens, and eagerly, from the
    same states, one after the other. Rows behind a batch are NaN.

    Returns `output` and `states`, the largest differences, the latter of requests' own slots;
    `kept`, that of the prefix cache's slots; `behind`: how many values behind batches are not 0;
    `others`: how many slots of nobody a replay has changed; `written`: how many slots it should.
    """
    found = dict(output=0.0, states=0.0, kept=0.0, behind=0, others=0, written=0)
    with compare_captured_model.recording() as patch:
        layer, linear = net(), backend(tracks)
        keep_states(patch, tracks)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        rows = [torch.randn(size, width).to(TYPE) for width in (CHANNELS, *[VALUE_HEADS] * 2)]
        capture = batch_of([size], [0], None)
        tables = linear.init_prefill_graph_metadata(capture)
        pool = linear.req_to_token_pool.mamba2_layer_cache(0)
        parts = pool.conv[0], pool.temporal
        first = [part.clone() for part in parts]
        made = recorded.Graph()
        made.capture_begin()
        output = linear.forward_extend(layer, capture, *rows)
        made.capture_end()
        for number, (lengths, prefixes, kept) in enumerate(batches):
            torch.manual_seed(number)
            put(parts, first)
            total = sum(lengths)
            for part in rows:
                part.normal_()
                part[total:] = float("nan")
            given = batch_of(lengths, prefixes, kept)
            cold = [i + 1 for i, prefix in enumerate(prefixes) if not prefix]
            parts[1][cold] = 0  # as slots are handed out
            begin = [part.clone() for part in parts]
            linear.refresh_prefill_graph_metadata(tables, given)
            made.replay()
            replayed, after = output.clone(), [part.clone() for part in parts]
            put(parts, begin)
            linear.init_forward_metadata(given)
            wanted = linear.forward_extend(layer, given, *(part[:total] for part in rows))
            found["output"] = max(found["output"], apart(replayed[:, :total], wanted))
            found["behind"] += (replayed[:, total:] != 0).sum().item()
            own = list(range(1, len(lengths) + 1))
            left = [len(own) + i for i in own if kept and kept[i - 1]]
            for new, old, then in zip(after, parts, begin, strict=True):
                found["states"] = max(found["states"], apart(new[own], old[own]))
                found["kept"] = max(found["kept"], apart(new[left], old[left]) if left else 0.0)
                changed = [slot for slot in range(SLOTS) if not new[slot].equal(then[slot])]
                found["others"] += len(set(changed) - {*own, *left})
                found["written"] += len({*own, *left} - set(changed))
    return found


def keep_states(patch: Any, tracks: bool) -> None:
    """What the release asks of its arguments here."""
    from sglang.srt.layers.attention.linear import kda_backend
    from sglang.srt.model_executor import forward_batch_info

    asked = SimpleNamespace(mamba=SimpleNamespace(enable_mamba_extra_buffer=tracks))
    patch.setattr(kda_backend, "get_exec", lambda: asked)
    for module in (forward_batch_info, kda_backend):
        patch.setattr(module, "mamba_cache_chunk_size", lambda: CHUNK)


def put(parts: Any, values: Any) -> None:
    for part, value in zip(parts, values, strict=True):
        part.copy_(value)


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """NaN counts as apart."""
    return (found.float() - wanted.float()).abs().nan_to_num(nan=float("inf")).max().item()
