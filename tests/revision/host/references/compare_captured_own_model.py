"""A small NemotronH whose Mamba2 layers are captured in the release's own runner, beside its eager
prefill, where the prefix cache keeps states.

Backend and mixers are the release's, the graph is a recorded one, and kernels are interpreted.
"""

import os
from types import SimpleNamespace

import test_captured_own_runner as parts
import torch

from host import models, prefill, state_pool, waits
from host.references import (
    compare_captured,
    compare_captured_model,
    compare_mamba2,
    compare_scan,
    mamba2,
)

CHUNK, SLOTS = 16, 13  # SLOTS is prime: see Pool
PATTERN = "M*M"  # attention breaks between two Mamba2 layers
REQUESTS, DRAFTS = 4, 3  # of a verification, at most; and of each request
PADDING = 0  # the token of rows behind a batch, which no request has


def state_of(mixer):
    """A layer's part of a pool that has room for what a verification leaves of each draft."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    conv, ssm = compare_mamba2.drawn_pool(mixer, SLOTS)
    return MambaPool.SpeculativeState(
        conv=[conv],
        temporal=ssm,
        intermediate_ssm=torch.zeros(REQUESTS, DRAFTS, *ssm.shape[1:]),
        intermediate_conv_window=[torch.zeros(REQUESTS, DRAFTS, *conv.shape[1:])],
    )


class Pool(state_pool.Named):
    """Random states of each layer. Slots have other names outside, as in a unified pool, but 0."""

    def __init__(self, mixers):
        torch.manual_seed(3)
        self.layers = {layer: state_of(mixer) for layer, mixer in mixers.items()}

    def mamba2_layer_cache(self, layer_id):
        return self.layers[layer_id]

    def get_mamba_indices(self, requests):
        return (requests + 1).to(torch.int32)

    def translate_mamba_indices(self, slots):
        return (5 * slots % SLOTS).to(torch.int32)

    def states(self):
        """Every layer's states, (convolution's, SSM's), as they are now."""
        kept = self.layers.items()
        return {layer: (one.conv[0].clone(), one.temporal.clone()) for layer, one in kept}

    def restore(self, states):
        for layer, (conv, ssm) in states.items():
            self.layers[layer].conv[0].copy_(conv), self.layers[layer].temporal.copy_(ssm)

    def of_drafts(self):
        """What a verification left of each draft."""
        kept = self.layers.values()
        parts = ((one.intermediate_ssm, one.intermediate_conv_window[0]) for one in kept)
        return [part.clone() for pair in parts for part in pair]


def hybrid(linear):
    """The release's hybrid backend: causal attention, and `linear`.

    planned: the batches that `linear` has prepared.
    """
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as release

    class Hybrid(release.HybridLinearAttnBackend):
        use_captured_forward_metadata_for_breakable_cuda_graph = False

        def __init__(self):
            self.full_attn_backend, self.linear_attn_backend = parts.CausalAttention(), linear
            self.planned = []

        def init_forward_metadata(self, batch):
            self.planned.append(batch)
            self.full_attn_backend.init_forward_metadata(batch)
            self.linear_attn_backend.init_forward_metadata(batch)

        def forward(self, *args, **kwargs):
            return self.full_attn_backend.forward(*args, **kwargs)

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


def linear_over(pool, step):
    """The release's Mamba2 backend on `pool`. The prefix cache keeps states of multiples of `step`
    tokens."""
    keep_states_of(step)
    first = next(iter(pool.layers.values()))
    made = compare_mamba2.backend(first.conv[0], first.temporal)
    made.conv_states_shape, made.enable_unified_memory = first.conv[0].shape, True
    made.is_draft_worker, made.topk, made.req_to_token_pool = False, 1, pool
    return made


def model_on_cpu():
    """A NemotronH with weights that make every part of its mixers matter, and its mixers by layer.

    Padding is NaN.
    """
    compare_mamba2.layer()  # the mixer's module gets its kernels
    model = models.build(
        "nemotron_h",
        device="cpu",
        dtype=torch.float32,
        hybrid_override_pattern=PATTERN,
        num_hidden_layers=len(PATTERN),
        mamba_n_groups=4,
    )
    model.model.embed_tokens.weight.data[PADDING] = float("nan")
    mixers = {i: model.model.layers[i].mixer for i, kind in enumerate(PATTERN) if kind == "M"}
    compare_mamba2.make_every_part_matter(*mixers.values())
    return model, mixers


def row_by_row(linear):
    """torch.nn.functional.linear, its bits the same for any number of rows."""

    def of_rows(rows, weight, bias=None):
        return torch.cat([linear(row, weight, bias) for row in rows.split(1)])

    return of_rows


def runners_on_cpu(patch, sizes, states):
    """The module of the release's runner, set up for `sizes`, with rows computed one by one.

    states: what the environment asks for.
    """
    patch.setattr(torch.nn.functional, "linear", row_by_row(torch.nn.functional.linear))
    patch.setattr(parts, "SIZES", sizes)
    patch.setenv(parts.SWITCH, states)
    return prefill.captures_on_cpu(patch)


def runner_of(patch, sizes, step, speculative):
    """The model's runner, its graph's runner with its sizes captured, and the pool of states."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    module = runners_on_cpu(patch, sizes, "")
    model, mixers = model_on_cpu()
    pool = Pool(mixers)
    changes = dict(mamba_radix_cache_strategy="extra_buffer", speculative_algorithm=speculative)
    made = parts.model_runner(model, hybrid(linear_over(pool, step)), **changes)
    made.req_to_token_pool, pool.enable_mamba_extra_buffer = pool, True
    made.spec_algorithm = SpeculativeAlgorithm.from_string(speculative)
    graph = module.PrefillCudaGraphRunner(made)
    for one in pool.layers.values():  # captures left NaN in the slot that no request owns
        one.conv[0][0], one.temporal[0] = 0, 0
    return made, graph, pool


def batch_of(lengths, prefixes, wanted):
    """A prefill, with `wanted` as in compare_captured.

    Request i has slot i + 1, and leaves a state in slot count + 1 + i.
    """
    said = {} if wanted is None else compare_captured.said_of(lengths, prefixes, wanted)
    made = parts.batch_of(lengths, **said)
    made.extend_prefix_lens, made.extend_prefix_lens_cpu = torch.tensor(prefixes), list(prefixes)
    made.seq_lens = made.seq_lens + made.extend_prefix_lens
    return made


def drafts_of(lengths):
    """Drafts to verify, behind `lengths` tokens of each request."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    made = parts.batch_of([DRAFTS] * len(lengths))
    made.forward_mode, made.seq_lens = ForwardMode.TARGET_VERIFY, torch.tensor(lengths)
    made.spec_info = SimpleNamespace(draft_token_num=DRAFTS, ragged_verify_layout=None)
    return made


def verified(runner, lengths):
    """The logits of drafts that are verified behind `lengths` tokens, and the states that the
    verification leaves of each."""
    logits = parts.eager(runner, drafts_of(lengths))
    return [logits, *runner.req_to_token_pool.of_drafts()]


def compare(batches, sizes, step=CHUNK, speculative=None):
    """Each batch, (lengths, prefixes, wanted), replayed and eagerly from the same states, one after
    the other.

    speculative: the name of what drafts; drafts are then verified behind each prefill. Returns over
    all batches:
        bits      how many values of logits and of the states of all slots differ
        left      how many states were left
        others    how many slots of no request a replay has changed
        missing   how many slots of requests, or of states to leave, it has not
        waits     ops of replays in which a host would wait to know a mask
        eager     how many mixers ran eagerly in a replay
        planned   how many batches the linear half prepared for a replay
        padding   how many values behind the batches are not NaN
        drafts    how many values of verifications' logits and states differ
        refused   how many batches of drafts the graph refused
    """
    counts = "bits", "left", "others", "missing", "eager", "planned", "padding", "drafts", "refused"
    found = dict.fromkeys(counts, 0) | dict(waits=[])
    os.environ.pop("SGLANG_MAMBA2_SCAN", None)
    with compare_captured_model.recording() as patch, compare_scan.small(CHUNK):
        runner, graph, pool = runner_of(patch, sizes, step, speculative)
        assert graph.captured_states is not None
        for given in batches:
            _add(found, runner, graph, pool, given)
    return found


def _add(found, runner, graph, pool, given):
    """Add to `found`, as in compare, what one batch shows."""
    lengths, _, wanted = given
    before = pool.states()
    logits = _replayed(found, runner, graph, batch_of(*given))
    after = pool.states()
    drafts = None if runner.spec_algorithm.is_none() else verified(runner, lengths)
    pool.restore(before)
    expected = parts.eager(runner, batch_of(*given))
    found["bits"] += (logits != expected).sum().item()
    kept = [len(lengths) + 1 + i for i, rows in enumerate(wanted or ()) if rows > 0]
    found["left"] += len(kept)
    names = torch.tensor([*range(1, len(lengths) + 1), *kept])
    written = pool.translate_mamba_indices(names).tolist()
    others = {*range(SLOTS)} - {*written}
    for layer, states in pool.states().items():
        found["bits"] += mamba2.unlike(after[layer], states)
        found["others"] += mamba2.changed(after[layer], before[layer], others)
        kept_as_they_were = len(states) * len(written) - mamba2.changed(
            after[layer], before[layer], written
        )
        found["missing"] += kept_as_they_were
    if drafts:
        found["drafts"] += mamba2.unlike(drafts, verified(runner, lengths))
        batch = drafts_of(lengths)
        batch.capture_hidden_mode = graph.capture_hidden_mode
        found["refused"] += not graph.can_run_graph(batch)


def _replayed(found, runner, graph, batch):
    """The logits of a replay. Adds to `found` what only the replay shows."""
    linear, calls, reads = runner.attn_backend.linear_attn_backend, [], waits.MaskReads()
    batch.capture_hidden_mode, forward = graph.capture_hidden_mode, linear.forward
    linear.forward = lambda **words: calls.append(words) or forward(**words)
    runner.attn_backend.planned.clear()
    with reads:
        logits = parts.replayed(graph, batch).clone()
    del linear.forward
    size = min(size for size in graph.capture_num_tokens if size >= len(batch.input_ids))
    [rows] = [rows for key, rows in graph.backend._outputs.items() if key.size == size]
    found["padding"] += (~rows[sum(batch.extend_seq_lens_cpu) :].isnan()).sum().item()
    found["eager"] += len(calls)
    found["planned"] += len(runner.attn_backend.planned)
    found["waits"] += reads.names
    return logits
