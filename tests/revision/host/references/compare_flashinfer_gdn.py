"""A captured gated delta net whose rule runs in FlashInfer's kernel, beside the release's eager
layer. The kernel of a GPU is replaced by a plain one of the same contract."""

import functools
import random

import torch
from sglang.srt.layers import radix_linear_attention
from sglang.srt.layers.attention.linear.kernels import gdn_flashinfer
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.prefill_graph.captured import flashinfer_rule, gdn, layers

from host import graph, state_pool
from host.references import compare_captured_gdn, compare_tracked_gdn, mamba2

NAN, CHUNK, TYPE = float("nan"), gdn.CHUNK, compare_tracked_gdn.TYPE


def prefill(
    captured,
    *,
    q,
    k,
    v,
    g,
    beta,
    initial_state,
    output_state,
    cu_seqlens,
    scale=None,
    output=None,
    output_final_state=True,
    use_qk_l2norm_in_kernel=False,
    state_checkpoints=None,
    checkpoint_cu_starts=None,
    checkpoint_every_n_tokens=0,
    use_cp="auto",
):
    """FlashInfer's chunk_gated_delta_rule on compute capability 9.0. What it leaves unwritten is
    NaN. captured: no launch may depend on the batch."""
    rows, tables = (q, k, v, g, beta), [cu_seqlens, checkpoint_cu_starts]
    assert all(part.is_contiguous() for part in (*rows, initial_state, output_state))
    assert q.shape[0] == v.shape[0] == g.shape[0] and scale is None and output is None
    assert q.dtype == k.dtype == v.dtype and g.dtype == beta.dtype == torch.float32
    assert {table.dtype for table in tables if table is not None} == {torch.int64}
    assert output_state.dtype == torch.float32 and output_final_state
    assert not use_qk_l2norm_in_kernel and not (captured and use_cp)
    output, begun = torch.full_like(v, NAN), initial_state.clone()
    output_state.fill_(NAN)
    every = checkpoint_every_n_tokens or len(q) + 1
    if state_checkpoints is not None:
        state_checkpoints.fill_(NAN)
        assert torch.equal(checkpoint_cu_starts.diff(), cu_seqlens.diff() // every)
    shared = v.shape[1] // q.shape[1]
    q, k = (part.float().repeat_interleave(shared, 1) for part in (q, k))
    for i, (first, end) in enumerate(zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:])):
        state = begun[i]
        for row in range(first, end):
            if (row - first) % CHUNK == 0:  # its programs read a whole tile, within the allocation
                behind = slice(end, min(row + CHUNK, len(q)) if row + CHUNK > end else end)
                state = state + 0.0 * sum(part[behind].float().sum() for part in (q, k, v))
            state = state * g[row][:, None, None]
            known = (state * k[row][:, None, :]).sum(-1)
            added = beta[row][:, None] * (v[row].float() - known)
            state = state + added[:, :, None] * k[row][:, None, :]
            output[row] = ((state * q[row][:, None, :]).sum(-1) * q.shape[-1] ** -0.5).to(v.dtype)
            if (done := row + 1 - first) % every == 0:
                state_checkpoints[checkpoint_cu_starts[i] + done // every - 1] = state
        if end > first:
            output_state[i] = state
    return output, output_state


def kernel(captured):
    """The release's wrapper, as its set-up on compute capability 9.0 leaves it."""
    made = gdn_flashinfer.FlashInferGDNKernel.__new__(gdn_flashinfer.FlashInferGDNKernel)
    made._prefill_fn = functools.partial(prefill, captured)
    made.use_state_pool, made.extend_uses_state_checkpoints = False, True
    made.extend_kernel = made
    return made


def backend(batch, pool, step):
    """The release's backend, whose prefills FlashInfer runs. pool: as the release has it."""
    made = compare_tracked_gdn.backend(batch, (pool.conv[0], pool.temporal), step)
    made.req_to_token_pool.mamba2_layer_cache = lambda layer_id: pool
    made.kernel_dispatcher, made.device = kernel(False), "cpu"
    state_pool.keep_steps(step, gdn_flashinfer)
    return made


def layer_of():
    """A RadixLinearAttention with weights that make every part of it matter."""
    torch.manual_seed(0)
    return radix_linear_attention.RadixLinearAttention(
        layer_id=0,
        **dict.fromkeys(("num_q_heads", "num_k_heads"), 2),
        num_v_heads=4,
        **dict.fromkeys(("head_q_dim", "head_k_dim", "head_v_dim"), 16),
        conv_weights=0.5 * torch.randn(128, 4).to(TYPE),
        bias=None,
        activation="silu",
        A_log=torch.rand(4),
        dt_bias=torch.randn(4),
    )


def drawn(rows, places, step):
    """New tokens, cached ones and what is kept, as in graph.said_of, of random requests."""
    lengths, left = [], random.randint(rows // 2, rows)
    while left and len(lengths) < places and random.random() < 0.9:
        lengths.append(random.choice([1, random.randint(1, left), left, min(left, step)]))
        left -= lengths[-1]
    lengths = lengths or [left]
    prefixes = [random.choice([0, 3, step]) for _ in lengths]
    return lengths, prefixes, [random.choice([-1, *ends(length, step) * 2]) for length in lengths]


def ends(length, step):
    """Behind how many new tokens a request may leave a state: whole steps, or one more inside."""
    whole = range(step, length + 1, step)
    return [length, *(one + (one < length) for one in whole)] if whole else []


def compare(seed, batches, rows, places, step=64, states="float32"):
    """Random batches through the tables of one size, one after the other. NaN is behind every
    batch, and the slots of requests that begin hold what others left. states: the pool's type.

    Returns, over all batches: `bits`, how many values of outputs, windows and states, and of what
    the prefix cache keeps, differ from the release's eager layer; `others`: how many other slots
    have changed; `behind`: how many values behind the batches are not zero; `rows`: how many rows
    are there; `kept`, `inside`: how many states were kept, and how many of them inside a prompt;
    `empty`: how many places had no request.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    found = dict.fromkeys(("bits", "others", "behind", "rows", "kept", "inside", "empty"), 0)
    layer, rule, slots = layer_of(), kernel(True)._prefill_fn, 2 * places + 2
    made = flashinfer_rule.Sequences(rule, step, rows, places, CHUNK, torch.device("cpu"))
    for _ in range(batches):
        lengths, prefixes, wanted = drawn(rows, places, step or CHUNK)
        count, total, order = len(lengths), sum(lengths), 1 + torch.randperm(slots - 1)
        said = compare_captured_gdn.said_of(lengths, prefixes, order, step, wanted)
        batch = graph.batch_of(lengths, prefixes, req_pool_indices=order[:count], **said)
        pool = torch.randn(slots, 128, 3).to(TYPE), 0.1 * torch.randn(slots, 4, 16, 16)
        pool = pool[0], pool[1].to(getattr(torch, states))
        given = [torch.randn(rows, size).to(TYPE) for size in (128, 4, 4)]
        cleared = compare_captured_gdn.cleared(pool[1], order[:count], prefixes)
        old = MambaPool.State(conv=[pool[0].clone()], temporal=cleared)
        new = MambaPool.State(conv=[pool[0].clone()], temporal=pool[1].clone())
        linear = backend(batch, old, step or CHUNK)
        linear.init_forward_metadata(batch)
        eager = linear.forward_extend(layer, batch, *(part[:total].clone() for part in given))
        for part in given:
            part[total:] = NAN
        made.fill(lengths, [prefix > 0 for prefix in prefixes], order[:count])
        layers.Captured(None, step).track(made, batch)
        output = gdn.run(layer, new, made, *given)
        kept = compare_captured_gdn.kept_of(said)
        written = order[:count].tolist() + kept
        result = output[:, :total], new.conv[0][written], new.temporal[written]
        eagerly = eager, old.conv[0][written], old.temporal[written]
        found["bits"] += mamba2.unlike(result, eagerly)
        spare = [slot for slot in range(slots) if slot not in written]
        found["others"] += mamba2.changed((new.conv[0], new.temporal), pool, spare)
        found["behind"] += (output[:, total:] != 0).sum().item()
        found["rows"] += rows - total
        found["kept"] += len(kept)
        found["inside"] += sum(0 < one != length for one, length in zip(wanted, lengths))
        found["empty"] += places - count
    return found
