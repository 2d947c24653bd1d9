"""Prefill graphs of small models captured on the CPU: by the release's own runner from 0.5.14 on,
before that by the overlay's. A replay runs the recorded ops again (host/recorded.py)."""

import contextlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from . import beside, graph, hybrids, late, models, prefill, process, segments, state_pool
from .served import published
from .unsaid import Unsaid

with late.modules():
    from sglang.srt.model_executor import cuda_graph_config, forward_batch_info
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.prefill_graph.captured import gdn, layers, own_runner
    from sglang.srt.prefill_graph.compat import capture as compat_capture
    from sglang.srt.prefill_graph.compat import ops
    from sglang.srt.prefill_graph.model import layers as model_layers
    from sglang.srt.prefill_graph.model import multimodal, stack
    from sglang.srt.speculative import spec_info

SIZES = [2, 8, 16, 32]  # from 0.5.14 on a batch is padded to twice its tokens at most
# new tokens of each request of a batch
BATCHES = [[8], [5], [3, 4], [1] * 8, [7, 2, 9], [16], [1] * 16, [11, 5, 1, 2, 8], [1]]


class CausalAttention:
    """Attention over each request's own new tokens. Refuses rows that no request accounts for.

    calls: of layers. snapshots: of how many rows it was asked for what replays share (from 0.5.19).
    """

    use_captured_forward_metadata_for_breakable_cuda_graph = False
    # asked from 0.5.22 on
    dllm_attention = prefill_cuda_graph_default_max_seq_len = None
    prefill_cuda_graph_max_batch_size = None
    supports_prefill_cuda_graph_max_context_size = skips_prefill_metadata_on_idle_dp_rank = False

    def __init__(self):
        self.calls, self.snapshots = 0, []

    def prepare_prefill_shared_read_snapshot(self, batch, num_qo_tokens):
        self.snapshots.append(num_qo_tokens)

    def resolve_prefill_shared_read_ends(self, batch, **_):
        """Asked from 0.5.22 on."""

    def init_forward_metadata(self, forward_batch):
        self.lengths = forward_batch.extend_seq_lens.tolist()

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        self.calls += 1
        assert len(q) == len(k) == len(v) == sum(self.lengths), (
            f"{len(q)} rows for requests of {self.lengths}"
        )
        out = []
        heads, group = layer.tp_q_head_num, layer.tp_q_head_num // layer.tp_k_head_num
        for a, b, c in zip(*(part.split(self.lengths) for part in (q, k, v))):
            a = a.view(len(a), heads, -1).transpose(0, 1)
            b, c = (
                part.view(len(part), heads // group, -1).transpose(0, 1).repeat_interleave(group, 0)
                for part in (b, c)
            )
            attended = torch.nn.functional.scaled_dot_product_attention(
                a, b, c, is_causal=True, scale=layer.scaling
            )
            out.append(attended.transpose(0, 1).flatten(1))
        return torch.cat(out)


def assert_alike(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def batch_of(lengths, **fields):
    """A prefill of requests with `lengths` new tokens each, as the scheduler makes it."""
    tokens, source = sum(lengths), torch.Generator().manual_seed(sum(lengths))
    count = "global_num_token_non_padded_cpu"  # from 0.5.20
    count = count if hasattr(forward_batch_info.ForwardBatch, count) else count[len("global_") :]
    batch = graph.batch_of(
        list(lengths),
        input_ids=torch.randint(1, 200, (tokens,), generator=source),
        positions=torch.cat([torch.arange(n) for n in lengths]),
        seq_lens_cpu=torch.tensor(lengths),
        orig_seq_lens=torch.tensor(lengths),
        extend_logprob_start_lens_cpu=list(lengths),
        out_cache_loc=torch.arange(1, tokens + 1),
        req_pool_indices=torch.arange(len(lengths)),
        capture_hidden_mode=forward_batch_info.CaptureHiddenMode.NULL,
        return_logprob=False,
        **{count: tokens},
        **fields,
    )
    batch.kv_loc_plan = SimpleNamespace(bind_replay=lambda *_, **__: None)  # from 0.5.22 on
    return batch


def axes_of(lengths, steps=(1, 1, 1)):
    """Positions of requests as the scheduler makes them of a multimodal model: three rows. steps:
    how far each axis goes per token."""
    return torch.cat([torch.arange(n) for n in lengths]) * torch.tensor(steps)[:, None]


def batch_for(kind, lengths):
    """batch_of, with the positions that a model of this kind takes."""
    if not kind.startswith("qwen3_"):
        return batch_of(lengths)
    steps = (1, 2, 5) if "axes apart" in kind else (1, 1, 1)
    return batch_of(lengths, mrope_positions=axes_of(lengths, steps))


def arguments(sizes=SIZES, **changes):
    """Server arguments that ask for the breakable graph of `sizes`."""
    if not late.has(prefill.RUNNER):
        asked = dict(piecewise_cuda_graph_tokens=sizes, enable_breakable_cuda_graph=True)
        return process.default_server_args(**asked | changes)
    graphs = Unsaid(
        bs=sizes,
        backend=cuda_graph_config.Backend.BREAKABLE,
        full_prefill_max_req=1,
        tc_compiler="eager",
    )
    asked = dict(cuda_graph_config=SimpleNamespace(prefill=graphs, decode=graphs))
    asked["mamba_radix_cache_strategy"] = "no_buffer"
    return process.default_server_args(**asked | changes)


def model_runner(model, attention, server_args=None, pool=None, **changes):
    """A ModelRunner as a prefill graph looks at it. pool: of requests; else one without states."""
    args = server_args or arguments()
    process.use_server_args(args)
    rows = model_layers.describe(stack.find(model).layers)
    pool = pool or SimpleNamespace(size=32)
    pool.req_to_token = torch.zeros(pool.size, 4096)
    made = Unsaid(
        server_args=args,
        spec_algorithm=spec_info.SpeculativeAlgorithm.from_string(None),
        model=model,
        attn_backend=attention,
        device="cpu",
        dtype=torch.float32,
        gpu_id=0,
        **dict.fromkeys(("tp_size", "dp_size", "pp_size"), 1),
        **dict.fromkeys(("tp_rank", "pp_rank", "moe_ep_rank"), 0),
        tp_group=SimpleNamespace(barrier=lambda: None),
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True),
        model_config=Unsaid(
            context_len=4096,
            num_hidden_layers=len(rows),
            hidden_size=128,
            vocab_size=256,
            hf_config=Unsaid(architectures=[type(model).__name__]),
        ),
        max_total_num_tokens=4096,
        req_to_token_pool=pool,
        is_generation=True,
        is_multimodal=False,
        **graph.lists_of(rows),
        dsa_indexers=[],
        mha_companion_layers=[None] * len(rows),
        attn_tp_sequence_sharded=lambda *_: False,  # from here on asked from 0.5.19 on
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        kv_index_translator=SimpleNamespace(bind_runner_slots=lambda batch: None),
        prepare_dummy_forward_batch=lambda batch: batch,
        get_pp_proxy_topk_size=lambda: None,
        get_pp_proxy_residual_num_blocks=lambda: None,
        get_pp_proxy_dspark_hidden_size=lambda: None,
    )
    vars(made).update(changes)
    made.model_config.is_multimodal = made.is_multimodal
    return made


class Server(NamedTuple):
    """runner: a ModelRunner. graph: the runner of its graph, None where it refused. seen: the
    batches that layers with states were given eagerly, or the calls of mixers beside attention."""

    runner: Any
    graph: Any
    seen: list

    def eager(self, batch):
        """The logits of an eager prefill."""
        # RadixAttention asks the batch for its backend up to 0.5.12
        batch.attn_backend = self.runner.attn_backend
        self.runner.attn_backend.init_forward_metadata(batch)
        with published(self.runner.attn_backend):
            return self.runner.model.forward(
                batch.input_ids, batch.positions, batch
            ).next_token_logits

    def replayed(self, batch):
        """The logits of a replay."""
        assert self.can_run(batch)
        if late.has(prefill.RUNNER):
            return self.graph.execute(batch).next_token_logits[: batch.batch_size]
        batch.attn_backend = self.runner.attn_backend
        with published(self.runner.attn_backend):
            return self.graph.replay(batch).next_token_logits

    def can_run(self, batch):
        return (getattr(self.graph, "can_run_graph", None) or self.graph.can_run)(batch)

    def why_not(self, batch):
        """Why layers with states keep a batch from being replayed, or None."""
        own = late.has(prefill.RUNNER)
        return own_runner.why_not(self.graph, batch) if own else self.graph.why_not(batch)

    @property
    def captured(self):
        """The layers with states that are captured, or None."""
        name = "captured_states" if late.has(prefill.RUNNER) else "captured"
        return getattr(self.graph, name, None)

    def tables(self, size):
        """The tables that a size was captured with."""
        if not late.has(prefill.RUNNER):
            return self.graph.tables[size]
        kept = self.graph.attn_metadata_buffers.items()  # from 0.5.21 on by ShapeKey
        return {getattr(key, "size", key): made for key, made in kept}[size]

    @property
    def graphs(self):
        """The graph of each size."""
        if not late.has(prefill.RUNNER):
            return self.graph.graphs
        return {key.size: one for key, one in self.graph.backend._graphs.items()}

    def output(self, size):
        """What the last replay of a size made of each of its rows."""
        if not late.has(prefill.RUNNER):
            return self.graph.output[:size]
        [rows] = [rows for key, rows in self.graph.backend._outputs.items() if key.size == size]
        return rows

    def breaks(self, size):
        """The breaks of a size, under the name that the release's primitive gives them."""
        one = self.graphs[size]
        return getattr(one, "breaks", None) or one._break_fns

    def attention_alone_breaks(self, size=16):
        """Whether every attention layer breaks, and no other layer, nor a mixer beside one."""
        kinds = [type(layer).__name__ for layer in self.runner.attention_layers]
        mixers = sum(map(model_layers.breaks_at_mixer, self.runner.model.modules()))
        wanted = kinds.count("RadixAttention")
        return 0 < len(self.breaks(size)) == wanted < len(kinds) + mixers


@contextlib.contextmanager
def recording(monkeypatch):
    """Captures on the CPU work inside."""
    if not late.has(prefill.RUNNER):
        monkeypatch.setattr(compat_capture, "capture_context", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(compat_capture, "graph_pool", lambda _: (0, 1))
    with segments.recording(monkeypatch), torch.no_grad():
        yield


def of(runner, monkeypatch, seen=()):
    """The Server of a ModelRunner whose graph is captured inside of `recording`."""
    if late.has(prefill.RUNNER):
        module = prefill.captures_on_cpu(monkeypatch)
        return Server(runner, module.PrefillCudaGraphRunner(runner), seen)
    return Server(runner, breakable.make_runner(runner), seen)


def capture(monkeypatch, kind="llama", **changes):
    """The Server of a small model, captured inside of `recording`. kind: of host/models.py; behind
    a comma, what a test does with it. changes: of its ModelRunner.

    Qwen3-VL stands for Qwen3.5, whose wrapper it is: its layers run on a CPU up to 0.5.13.
    """
    kind, seen, attention = kind.partition(",")[0], [], CausalAttention()
    if kind == "falcon_h1":
        attention = beside.backend(seen)
    elif kind in ("nemotron_h", "qwen3_5"):
        seen = hybrids.on_cpu(monkeypatch)
        attention = hybrids.recurrent(attention, seen)
    if kind.startswith("qwen3_"):
        known = (*multimodal.KNOWN, "Qwen3VLForConditionalGeneration")
        monkeypatch.setattr(multimodal, "KNOWN", known)
        changes |= dict(is_multimodal=True)
    model = models.build(kind, device="cpu", dtype=torch.float32)
    return of(model_runner(model, attention, **changes), monkeypatch, seen)


def sums_by_table(now, hidden_states, output, layer_id, *_):
    """hybrids.sums, of what the tables say instead of the batch."""
    cu, rows = now.tables.plan.cu.long(), torch.arange(len(hidden_states))
    real = (rows < cu[-1])[:, None]
    summed = torch.where(real, hidden_states, 0).cumsum(0)
    owner = torch.searchsorted(cu[1:], rows, right=True).clamp(max=now.tables.requests - 1)
    before = torch.cat([torch.zeros_like(summed[:1]), summed])[cu[:-1]][owner]
    return output, torch.where(real, (summed - before) / cu[-1], 0)


def _gated_sums_by_table(now, mixed_qkv, a, b, output, layer_id):
    """What hybrids.recurrent does, of what the tables say instead of the batch."""
    layer = ops.forward_context().attention_layers[layer_id]
    gated = hybrids.gated_values(layer, mixed_qkv, a, b).flatten(1)
    _, sums = sums_by_table(now, gated, output, layer_id)
    return output, sums.view_as(output)


def capture_states(monkeypatch, kind="nemotron_h", server_args=None, **changes):
    """capture() of a model whose layers with states are captured: sums of each request's own rows
    stand in for their launches, as they do for their breaks."""
    for module in (layers.mamba2, gdn):
        monkeypatch.setattr(module, "why_not", lambda *_: None)
    monkeypatch.setattr(layers.mamba2, "chunk", lambda _: layers.tiles.CHUNK)
    monkeypatch.setattr(layers.delta_rule, "other_kernels", lambda _: None)
    launches = {
        "nemotron_mamba2_with_output": sums_by_table,
        "unified_linear_attention_with_output": _gated_sums_by_table,
        "mixer_on_batch": lambda now, _, *rows, **more: sums_by_table(now, *rows, 0),
    }
    for name, launch in launches.items():
        monkeypatch.setitem(layers.RUN, name, launch)
    args, pool = server_args or arguments(), state_pool.Named()
    # from 0.5.20 on the arguments do not say
    keeps = getattr(args, "mamba_radix_cache_strategy", None) == "extra_buffer"
    pool.enable_mamba_extra_buffer = keeps
    return capture(monkeypatch, kind, server_args=args, pool=pool, **changes)
