"""A small Qwen3.5 or Qwen3-Next whose gated delta nets are captured in the release's own runner
(from 0.5.15), beside its eager prefill.

Backend and nets are the release's, the graph is a recorded one, and kernels are interpreted.
"""

import test_breakable_runner as breakable
import test_captured_own_runner as parts
import torch

from host import hybrids, models
from host.references import (
    compare_captured,
    compare_captured_model,
    compare_captured_own_model,
    mamba2,
)

TYPE, SLOTS = compare_captured_model.TYPE, compare_captured_model.SLOTS  # 5 and SLOTS share none
CHANGES = {"qwen3_5": {}, "qwen3_next": dict(num_hidden_layers=4, torch_dtype="float16")}
PADDING = 0  # the token of rows behind a batch, which no request has


class Hybrid(compare_captured_model.Hybrid):
    """As the runner sees a hybrid backend."""

    use_captured_forward_metadata_for_breakable_cuda_graph = False


def experts(layer, rows, chosen, config):
    """Each row's experts, in ops that are the same for any choice. The release's for CPUs ask the
    host how many rows an expert has, and a recorded graph would keep the answer."""
    from sglang.srt.layers.moe import fused_moe_native, token_dispatcher

    given = token_dispatcher.StandardDispatchOutput(
        hidden_states=rows, hidden_states_scale=None, topk_output=chosen
    )
    return fused_moe_native.fused_moe_forward_native(layer, given).hidden_states


def model_on_cpu(patch, kind):
    """A small model of `kind`, and what its padding is: NaN."""
    from sglang.srt.layers.moe import fused_moe_native

    hybrids.on_cpu(patch)
    patch.setattr(fused_moe_native, "moe_forward_native", experts)
    model = compare_captured_model.built(kind, **CHANGES[kind])
    model.model.embed_tokens.weight.data[PADDING] = float("nan")
    return model


def runner_of(patch, sizes, kind, states, step, speculative):
    """The model's runner, the graph's runner with its sizes captured, and the pool of states."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    module = compare_captured_own_model.runners_on_cpu(patch, sizes, states)
    changes = dict(speculative_algorithm=speculative)
    if step:
        changes["mamba_radix_cache_strategy"] = "extra_buffer"
    made = parts.model_runner(model_on_cpu(patch, kind), None, **changes)
    made.spec_algorithm = SpeculativeAlgorithm.from_string(speculative)
    made.is_multimodal = made.model_config.is_multimodal = kind == "qwen3_5"
    nets = [i for i, one in enumerate(made.attention_layers) if hasattr(one, "conv_weights")]
    config = models.config_of(kind)
    pool = compare_captured_model.pool_of(getattr(config, "text_config", config), nets)
    backend = compare_captured_model.backend(pool)
    compare_captured_own_model.keep_states_of(step)
    backend.enable_unified_memory = True
    vars(backend.req_to_token_pool).update(size=SLOTS, translate_mamba_indices=inside)
    made.attn_backend, made.req_to_token_pool = Hybrid(backend), backend.req_to_token_pool
    made.req_to_token_pool.enable_mamba_extra_buffer = step is not None
    made.dtype = TYPE
    graph = module.PrefillCudaGraphRunner(made)
    for one in pool.values():  # captures left NaN in the slot that no request owns
        one.conv[0][0], one.temporal[0] = 0, 0
    return made, graph, pool


def inside(slots):
    """Each slot's name inside of the pool, as in a unified one; 0 has the same."""
    return (5 * slots % SLOTS).to(torch.int32)


def compare(batches, sizes, kind="qwen3_5", states="", step=None, speculative=None):
    """Each batch, (lengths, prefixes), replayed and eagerly from the same states, one after the
    other. The slots of requests that begin hold what others left, in replays of captured nets.

    states: what the environment asks for. step: behind each multiple of how many tokens the prefix
    cache keeps states; batches then say `wanted`, as in compare_captured, too. speculative: the
    name of what drafts. Returns over all batches:
        bits      how many values of logits and of the states of requests and cache differ
        others    how many slots of neither a replay has changed
        missing   how many slots of requests, or of states to keep, it has not
        kept      how many states were kept
        ran       how many nets ran eagerly in a replay
        rows      how many rows the graphs have behind the batches
        padding   how many of their values are not NaN
    and `nets`: how many layers are nets; `breaks`: how many a graph of the largest size has.
    """
    found = dict(bits=0, others=0, missing=0, kept=0, ran=0, rows=0, padding=0)
    with compare_captured_model.recording() as patch:
        runner, graph, pool = runner_of(patch, sizes, kind, states, step, speculative)
        linear, calls = runner.attn_backend.linear_attn_backend, []
        forward = linear.forward_extend
        linear.forward_extend = lambda **given: calls.append(1) or forward(**given)
        for lengths, prefixes, *wanted in batches:
            given = lengths, prefixes, *wanted
            own = inside(torch.arange(1, len(lengths) + 1)).tolist()
            cold = [slot for slot, cached in zip(own, prefixes, strict=True) if not cached]
            left = wanted[0] if wanted else ()
            kept = [len(own) + 1 + i for i, rows in enumerate(left) if rows > 0]
            written = own + inside(torch.tensor(kept, dtype=torch.int64)).tolist()
            found["kept"] += len(kept)
            if not graph.captured_states:
                hand_out(pool, cold)
            before = copied(pool)
            calls.clear()
            logits = parts.replayed(graph, batch_of(graph, *given)).clone()
            found["ran"] += len(calls)
            behind = rows_behind(graph, batch_of(graph, *given))
            found["rows"] += len(behind)
            found["padding"] += (~behind.isnan()).sum().item()
            after = copied(pool)
            put(pool, before)
            hand_out(pool, cold)
            eagerly = parts.eager(runner, batch_of(graph, *given))
            found["bits"] += mamba2.unlike([logits], [eagerly])
            for new, old, first in zip(after, copied(pool), before, strict=True):
                found["bits"] += mamba2.unlike([new[written]], [old[written]])
                changed = {slot for slot in range(SLOTS) if (new[slot] != first[slot]).any()}
                found["others"] += len(changed - set(written))
                found["missing"] += len(set(written) - changed)
        [largest] = [one for key, one in graph.backend._graphs.items() if key.size == max(sizes)]
    return found | dict(nets=len(pool), breaks=len(largest._break_fns))


def hand_out(pool, slots):
    """Clear the states of `slots`, as the scheduler does."""
    for kept in pool.values():
        kept.temporal[slots] = 0


def rows_behind(graph, batch):
    """What the last replay of a batch's size made of the rows behind the batch."""
    size = min(size for size in graph.capture_num_tokens if size >= len(batch.input_ids))
    [rows] = [rows for key, rows in graph.backend._outputs.items() if key.size == size]
    return rows[sum(batch.extend_seq_lens_cpu) :]


def batch_of(graph, lengths, prefixes, wanted=None):
    said = {} if wanted is None else compare_captured.said_of(lengths, prefixes, wanted)
    made = parts.batch_of(lengths, mrope_positions=breakable.axes_of(lengths), **said)
    made.capture_hidden_mode = graph.capture_hidden_mode
    made.extend_prefix_lens, made.extend_prefix_lens_cpu = torch.tensor(prefixes), list(prefixes)
    return made


def copied(pool):
    """Each layer's windows and states."""
    return [part.clone() for kept in pool.values() for part in (kept.conv[0], kept.temporal)]


def put(pool, states):
    for kept, (conv, state) in zip(pool.values(), zip(states[::2], states[1::2]), strict=True):
        kept.conv[0].copy_(conv), kept.temporal.copy_(state)
