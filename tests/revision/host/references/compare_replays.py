"""A small NemotronH, Qwen3.5 or Qwen3-Next whose layers with states are captured in a runner's
graph, beside its eager prefill.

Backends and layers are the release's, the graph is a recorded one, and kernels are interpreted.
"""

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch
from triton.runtime import interpreter

from host import captures, hybrids, late, models, prefill, recorded, state_pool, waits
from host.references import (
    compare_captured,
    compare_mamba2,
    compare_scan,
    compare_tracked_gdn,
    mamba2,
)

CHUNK, SLOTS = 16, 13  # SLOTS is prime: see Pool
PATTERN = "M*M"  # attention breaks between two Mamba2 layers
REQUESTS, DRAFTS = 4, 3  # of a verification, at most; and of each request
PADDING = 0  # the token of rows behind a batch, which no request has
QWEN = {"qwen3_5": {}, "qwen3_next": dict(num_hidden_layers=4, torch_dtype="float16")}


class Launch:
    """A launch of a kernel, as an op that a recorded graph runs again."""

    overloadpacket = SimpleNamespace(__name__="launch")

    def __init__(self, run):
        self.run = run

    def __call__(self, *args, **kwargs):
        self.run(*args, **kwargs)


@contextlib.contextmanager
def launches_recorded():
    """Note each launch of a capture in its graph; what the interpreter does of its own is no part
    of it."""
    own = interpreter.GridExecutor.__call__

    def call(self, *args, **kwargs):
        recorder = recorded.Graph.recorder
        graph, recorder.target = recorder.target, None
        own(self, *args, **kwargs)
        recorder.target = graph
        if graph is not None:
            graph.ops.append((Launch(lambda *a, **k: own(self, *a, **k)), args, kwargs, None))

    interpreter.GridExecutor.__call__ = call
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = own


class Pool(state_pool.Named):
    """Random states of each layer. Slots have other names outside, as in a unified pool, but 0.

    layers: by number, what a layer has of the release's pool.
    """

    size = SLOTS

    def __init__(self, layers):
        self.layers = layers

    def mamba2_layer_cache(self, layer_id):
        return self.layers[layer_id]

    def get_mamba_indices(self, requests):
        return (requests + 1).to(torch.int32)

    def translate_mamba_indices(self, slots):
        if not late.has(prefill.RUNNER):  # up to 0.5.13 nobody else asks
            return slots
        return (5 * slots % SLOTS).to(torch.int32)

    def parts(self):
        """Every layer's windows and states."""
        return [part for kept in self.layers.values() for part in (kept.conv[0], kept.temporal)]

    def states(self):
        return [part.clone() for part in self.parts()]

    def restore(self, states):
        for part, before in zip(self.parts(), states, strict=True):
            part.copy_(before)

    def hand_out(self, slots):
        """Clear the states of `slots`, as the scheduler does."""
        for kept in self.layers.values():
            kept.temporal[slots] = 0

    def of_drafts(self):
        """What a verification left of each draft."""
        kept = self.layers.values()
        parts = ((one.intermediate_ssm, one.intermediate_conv_window[0]) for one in kept)
        return [part.clone() for pair in parts for part in pair]


def mamba2_state(mixer):
    """A layer's part of a pool that has room for what a verification leaves of each draft."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    conv, ssm = compare_mamba2.drawn_pool(mixer, SLOTS)
    return MambaPool.SpeculativeState(
        conv=[conv],
        temporal=ssm,
        intermediate_ssm=torch.zeros(REQUESTS, DRAFTS, *ssm.shape[1:]),
        intermediate_conv_window=[torch.zeros(REQUESTS, DRAFTS, *conv.shape[1:])],
    )


def nets_state(config):
    """A gated delta net's part of a pool."""
    heads = config.linear_num_value_heads
    channels = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    channels += heads * config.linear_value_head_dim
    state = heads, config.linear_value_head_dim, config.linear_key_head_dim
    return SimpleNamespace(
        conv=[torch.randn(SLOTS, channels, 3).to(compare_tracked_gdn.TYPE)],
        temporal=0.1 * torch.randn(SLOTS, *state),
    )


def hybrid(linear):
    """The release's hybrid backend: causal attention, and `linear`.

    planned: the batches that `linear` has prepared.
    """
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as release

    class Hybrid(release.HybridLinearAttnBackend):
        use_captured_forward_metadata_for_breakable_cuda_graph = False

        def __init__(self):
            self.full_attn_backend, self.linear_attn_backend = captures.CausalAttention(), linear
            self.planned = []

        def init_forward_metadata(self, batch):
            self.planned.append(batch)
            self.full_attn_backend.init_forward_metadata(batch)
            self.linear_attn_backend.init_forward_metadata(batch)

        def forward(self, *args, mixed_qkv=None, a=None, b=None, **given):
            if mixed_qkv is None:
                return self.full_attn_backend.forward(*args, **given)
            given = dict(layer=given["layer"], forward_batch=given["forward_batch"])
            return self.linear_attn_backend.forward_extend(mixed_qkv=mixed_qkv, a=a, b=b, **given)

    return Hybrid()


def keep_states_of(step):
    """Let the release's backends take `step` for that of the prefix cache."""
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as release
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.compat import ops

    arguments = SimpleNamespace(mamba_cache_chunk_size=step, enable_page_major_kv_layout=False)
    release.get_server_args = release.get_global_server_args = lambda: arguments
    release.mamba_cache_chunk_size = forward_batch_info.mamba_cache_chunk_size = lambda: step
    ops.mamba_cache_chunk_size = lambda: step


def nemotron():
    """A NemotronH with weights that make every part of its mixers matter, the pool of their states,
    and the release's backend on that."""
    compare_mamba2.layer()  # the mixer's module gets its kernels
    changes = dict(pattern=PATTERN, mamba_n_groups=4)
    model = models.build("nemotron_h", device="cpu", dtype=torch.float32, **changes)
    mixers = {i: model.model.layers[i].mixer for i, kind in enumerate(PATTERN) if kind == "M"}
    compare_mamba2.make_every_part_matter(*mixers.values())
    torch.manual_seed(3)
    pool = Pool({layer: mamba2_state(mixer) for layer, mixer in mixers.items()})
    conv, ssm = pool.parts()[:2]
    return model, pool, compare_mamba2.backend(conv, ssm)


def experts(layer, rows, chosen, config):
    """Each row's experts, in ops that are the same for any choice. The release's for CPUs ask the
    host how many rows an expert has, and a recorded graph would keep the answer."""
    from sglang.srt.layers.moe import fused_moe_native, token_dispatcher

    given = token_dispatcher.StandardDispatchOutput(
        hidden_states=rows, hidden_states_scale=None, topk_output=chosen
    )
    return fused_moe_native.fused_moe_forward_native(layer, given).hidden_states


def qwen(patch, kind):
    """A Qwen3.5 or Qwen3-Next, the pool of its nets' states, and the release's backend on that.

    Vectors that the model's classes leave to a checkpoint, as the decay of a net and the weight of
    its norm, are 1, and not what memory held.
    """
    from sglang.srt.layers import radix_linear_attention
    from sglang.srt.layers.moe import fused_moe_native

    hybrids.on_cpu(patch)
    patch.setattr(fused_moe_native, "moe_forward_native", experts)
    torch.use_deterministic_algorithms(True)  # fresh memory is NaN
    try:
        model = models.build(kind, device="cpu", dtype=compare_tracked_gdn.TYPE, **QWEN[kind])
    finally:
        torch.use_deterministic_algorithms(False)
    for parameter in model.parameters():
        parameter.data[parameter.isnan()] = 1
    layers = captures.model_runner(model, None).attention_layers
    config = models.config_of(kind)
    config = getattr(config, "text_config", config)
    torch.manual_seed(3)
    nets = [i for i, one in enumerate(layers) if hasattr(one, "conv_weights")]
    pool = Pool({layer: nets_state(config) for layer in nets})
    before = dict(vars(radix_linear_attention))
    made = compare_tracked_gdn.backend(SimpleNamespace(), pool.parts()[:2])
    vars(radix_linear_attention).update(before)  # in a graph, layers do look for its batch
    made.kernel_dispatcher = SimpleNamespace(
        extend=made.kernel_dispatcher.extend,
        extend_kernel=made.kernel_dispatcher,
        extend_uses_state_checkpoints=False,  # asked from 0.5.17 on
    )
    return model, pool, made


def row_by_row(linear):
    """torch.nn.functional.linear, its bits the same for any number of rows."""

    def of_rows(rows, weight, bias=None):
        return torch.cat([linear(row, weight, bias) for row in rows.split(1)])

    return of_rows


def server_of(patch, sizes, kind, step, speculative):
    """A captures.Server with its sizes captured; seen: the calls of layers with states that run
    eagerly."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    patch.setattr(torch.nn.functional, "linear", row_by_row(torch.nn.functional.linear))
    model, pool, linear = nemotron() if kind == "nemotron_h" else qwen(patch, kind)
    model.model.embed_tokens.weight.data[PADDING] = float("nan")
    keep_states_of(step)
    linear.req_to_token_pool, linear.enable_unified_memory = pool, True
    linear.is_draft_worker, linear.topk, linear.conv_states_shape = False, 1, pool.parts()[0].shape
    seen, name = [], "forward" if kind == "nemotron_h" else "forward_extend"
    run = getattr(linear, name)
    setattr(linear, name, lambda **given: seen.append(given) or run(**given))
    words = captures.process.extra_buffer() if step else {}
    if speculative:
        words["speculative_algorithm"] = speculative
    pool.enable_mamba_extra_buffer = step is not None
    runner = captures.model_runner(
        model,
        hybrid(linear),
        captures.arguments(sizes, **words),
        pool,
        spec_algorithm=SpeculativeAlgorithm.from_string(speculative),
        is_multimodal=kind == "qwen3_5",
        dtype=next(model.parameters()).dtype,
    )
    server = captures.of(runner, patch, seen)
    for part in pool.parts():  # captures left NaN in the slot that no request owns
        part[0] = 0
    return server


def batch_of(kind, lengths, prefixes, wanted=None):
    """A prefill, with `wanted` as in compare_captured.

    Request i has slot i + 1, and leaves a state in slot count + 1 + i.
    """
    said = {} if wanted is None else compare_captured.said_of(lengths, prefixes, wanted)
    if kind == "qwen3_5":
        said["mrope_positions"] = captures.axes_of(lengths)
    made = captures.batch_of(lengths, **said)
    made.extend_prefix_lens, made.extend_prefix_lens_cpu = torch.tensor(prefixes), list(prefixes)
    made.seq_lens = made.seq_lens + made.extend_prefix_lens
    return made


def drafts_of(lengths):
    """Drafts to verify, behind `lengths` tokens of each request."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    made = captures.batch_of([DRAFTS] * len(lengths))
    made.forward_mode, made.seq_lens = ForwardMode.TARGET_VERIFY, torch.tensor(lengths)
    made.spec_info = SimpleNamespace(draft_token_num=DRAFTS, ragged_verify_layout=None)
    return made


def verified(server, lengths):
    """The logits of drafts that are verified behind `lengths` tokens, and the states that the
    verification leaves of each."""
    logits = server.eager(drafts_of(lengths))
    return [logits, *server.runner.req_to_token_pool.of_drafts()]


def rows_behind(server, batch):
    """What the last replay of a batch's size made of the rows behind the batch."""
    count = len(batch.input_ids)
    size = min(size for size in server.graph.capture_num_tokens if size >= count)
    if not late.has(prefill.RUNNER):
        return server.graph.output[count:size]
    [rows] = [rows for key, rows in server.graph.backend._outputs.items() if key.size == size]
    return rows[count:]


def compare(batches, sizes, kind="nemotron_h", states="", step=None, speculative=None):
    """Each batch, (lengths, prefixes) or (lengths, prefixes, wanted), replayed and eagerly from the
    same states, one after the other. The slots of requests that begin hold what others left, in
    replays of captured layers.

    states: what the environment asks for. step: behind each multiple of how many tokens the prefix
    cache keeps states. speculative: the name of what drafts; NemotronH's drafts are then verified
    behind each prefill. Returns over all batches:
        bits      how many values of logits and of the states of requests and cache differ
        apart     the largest difference of logits, by their size, and of these states
        others    how many slots of neither a replay has changed
        missing   how many slots of requests, or of states to keep, it has not
        kept      how many states were kept
        waits     ops of replays in which a host would wait to know a mask
        ran       how many layers with states ran eagerly in a replay
        planned   how many batches the linear half prepared for a replay
        rows      how many rows the graphs have behind the batches
        padding   how many of their values are not NaN
        drafts    how many values of verifications' logits and states differ
        refused   how many batches of drafts the graph refused
    and `layers`: how many have states; `breaks`: how many a graph of the largest size has.
    """
    counts = "bits", "others", "missing", "kept", "ran", "planned", "rows", "padding", "drafts"
    found = dict.fromkeys((*counts, "refused"), 0) | dict(waits=[], apart=0.0)
    os.environ.pop("SGLANG_MAMBA2_SCAN", None)
    with (
        pytest.MonkeyPatch.context() as patch,
        captures.recording(patch),
        launches_recorded(),
        compare_scan.small(CHUNK),
    ):
        patch.setenv("SGLANG_PREFILL_GRAPH_STATES", states)
        server = server_of(patch, sizes, kind, step, speculative)
        for given in batches:
            _add(found, server, kind, *given)
        pool = server.runner.req_to_token_pool
        return found | dict(layers=len(pool.layers), breaks=len(server.breaks(max(sizes))))


def _add(found, server, kind, lengths, prefixes, wanted=None):
    """Add to `found`, as in compare, what one batch shows."""
    pool, given = server.runner.req_to_token_pool, (kind, lengths, prefixes, wanted)
    requests = torch.arange(1, len(lengths) + 1)
    asked = [len(lengths) + 1 + i for i, rows in enumerate(wanted or ()) if rows > 0]
    names = torch.tensor([*requests.tolist(), *asked])
    written = pool.translate_mamba_indices(names).tolist()
    cold = [slot for slot, cached in zip(written, prefixes) if not cached]
    found["kept"] += len(asked)
    if not server.captured:
        pool.hand_out(cold)
    before = pool.states()
    logits = _replayed(found, server, batch_of(*given))
    after = pool.states()
    verifies = kind == "nemotron_h" and not server.runner.spec_algorithm.is_none()
    drafts = verified(server, lengths) if verifies else None
    pool.restore(before)
    pool.hand_out(cold)
    expected = server.eager(batch_of(*given))
    found["bits"] += mamba2.unlike([logits], [expected])
    apart = mamba2.apart([logits / expected.abs().max()], [expected / expected.abs().max()])
    for new, old, first in zip(after, pool.states(), before, strict=True):
        found["bits"] += mamba2.unlike([new[written]], [old[written]])
        apart += mamba2.apart([new[written]], [old[written]])
        changed = {slot for slot in range(SLOTS) if (new[slot] != first[slot]).any()}
        found["others"] += len(changed - set(written))
        found["missing"] += len(set(written) - changed)
    found["apart"] = max(found["apart"], *apart)
    if drafts:
        found["drafts"] += mamba2.unlike(drafts, verified(server, lengths))
        batch = drafts_of(lengths)
        batch.capture_hidden_mode = server.graph.capture_hidden_mode
        found["refused"] += not server.can_run(batch)


def _replayed(found, server, batch):
    """The logits of a replay. Adds to `found` what only the replay shows."""
    # where drafts follow, the runner's own graph is captured with hidden states
    captured_mode = getattr(server.graph, "capture_hidden_mode", batch.capture_hidden_mode)
    batch.capture_hidden_mode = captured_mode
    server.seen.clear(), server.runner.attn_backend.planned.clear()
    with waits.MaskReads() as reads:
        logits = server.replayed(batch).clone()
    behind = rows_behind(server, batch)
    found["rows"] += len(behind)
    found["padding"] += (~behind.isnan()).sum().item()
    found["ran"] += len(server.seen)
    found["planned"] += len(server.runner.attn_backend.planned)
    found["waits"] += reads.names
    return logits
