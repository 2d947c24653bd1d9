"""The piecewise graph without a GPU: the release's own tracer, splitter and context, and stand-ins
for captures and kernels."""

import contextlib
from dataclasses import dataclass

import torch

from . import late, process

with late.modules():
    from sglang.srt.compilation import backend, compilation_config, piecewise_context_manager
    from sglang.srt.compilation import compile as compilation
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.model import layers


def forward_context(batch, attention_layers, moe_layers=(), moe_fusions=()):
    """The release's set_forward_context, with as many of its arguments as it has."""
    return process.call(
        piecewise_context_manager.set_forward_context,
        forward_batch=batch,
        attention_layers=list(attention_layers),
        quant_config=None,
        moe_layers=list(moe_layers),
        moe_fusions=list(moe_fusions),
        dsa_indexers=[],
    )


def prefill_batch(tokens, **fields):
    """A ForwardBatch of one prefill of `tokens`; `fields` are set on top."""
    values = dict(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        batch_size=1,
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        req_pool_indices=torch.arange(1),
        seq_lens=torch.tensor([tokens]),
        out_cache_loc=None,
        seq_lens_sum=tokens,
        extend_num_tokens=tokens,
    )
    return forward_batch_info.ForwardBatch(**values | fields)


def batch_of(lengths, prefixes=None, **fields):
    """A ForwardBatch of one prefill of requests with so many new tokens and cached ones (None: no
    cached ones) each, of which request i has slot i + 1; `fields` are set on top."""
    prefixes = prefixes or [0] * len(lengths)
    new, cached, rows = torch.tensor(lengths), torch.tensor(prefixes), torch.arange(sum(lengths))
    values = dict(
        batch_size=len(lengths),
        input_ids=rows,
        positions=rows.clone(),
        out_cache_loc=rows.clone(),
        req_pool_indices=torch.arange(1, len(lengths) + 1),
        seq_lens=new + cached,
        extend_seq_lens=new,
        extend_prefix_lens=cached,
        extend_start_loc=new.cumsum(0) - new,
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens_cpu=prefixes,
    )
    return prefill_batch(sum(lengths), **values | fields)


def said_of(lengths, prefixes, wanted):
    """A batch's three fields. Request i leaves a state in slot count + 1 + i; wanted: behind how
    many of its new tokens, or one more where that is not the last whole chunk, as the scheduler
    asks for it; -1: none."""
    count = len(lengths)
    asked = torch.tensor(wanted)
    mask = asked > 0
    ends = torch.where(mask, asked + torch.tensor(prefixes), -1)
    slots = torch.arange(count + 1, 2 * count + 1)
    said = dict(mamba_track_mask=mask, mamba_track_seqlens=ends, mamba_track_indices=slots)
    if hasattr(forward_batch_info.ForwardBatch, "mamba_track_seqlens_cpu"):  # from 0.5.21
        said["mamba_prefill_track_mask_cpu"] = mask.tolist()
        said["mamba_track_seqlens_cpu"] = ends.tolist()
    return said


@dataclass(frozen=True)
class Piece:
    """A piece of the split forward. op: the split op's name, "" for a piece that is captured.
    has_size: a symbolic number of tokens is among its inputs; the release's runner captures no
    piece without."""

    op: str
    has_size: bool


@dataclass(frozen=True)
class Traced:
    """A forward compiled by the release's own backend. outputs: of a first and of a second run."""

    pieces: tuple[Piece, ...]
    outputs: tuple[torch.Tensor, ...]


def traced_forward(model, batch, lists, tokens):
    """Compile `model.model` as the release's runner does, split it, and run it twice on `tokens`
    tokens.

    lists: attention_layers, and where the release has them moe_layers and moe_fusions. Split ops
    need CPU kernels.
    """
    # sizes it would capture: not the one that is run
    settings = compilation_config.CompilationConfig([tokens + 1], "eager")
    made = []

    def factory(graph, inputs):
        made.append(backend.SGLangBackend(settings, object()))
        return made[0](graph, inputs)

    torch._dynamo.reset()
    compilation.install_torch_compiled(
        model.model,
        fullgraph=True,
        dynamic_arg_dims=None,
        compile_config=settings,
        graph_pool=object(),
        backend_factory=factory,
    )
    ids = torch.arange(tokens)
    compiling = getattr(
        piecewise_context_manager, "enable_piecewise_cuda_graph_compile", contextlib.nullcontext
    )
    # up to 0.5.9; later the context alone decides
    compiled = getattr(compilation, "set_compiled", contextlib.nullcontext)
    with (
        piecewise_context_manager.enable_piecewise_cuda_graph(),
        compiled(True),
        compiling(),
        torch.no_grad(),
        forward_context(batch, **lists),
    ):
        outputs = tuple(model.model.forward(ids, ids, batch) for _ in range(2))
    return Traced(tuple(_piece(item) for item in made[0].piecewise_graphs), outputs)


def _piece(item):
    nodes = item.graph.graph.nodes
    op = next((str(node.target) for node in nodes if node.op == "call_function"), "")
    inputs = [node.meta.get("example_value") for node in nodes if node.op == "placeholder"]
    has_size = any(isinstance(value, torch.SymInt) for value in inputs)
    return Piece(op if item.is_splitting_graph else "", has_size)


@contextlib.contextmanager
def cpu_kernel(op, function):
    """Inside, a GPU-only op of the release has a kernel for CPU tensors."""
    library = torch.library.Library("sglang", "IMPL")
    library.impl(op, function, "CPU")
    try:
        yield
    finally:
        library._destroy()


def copying_attention():
    """cpu_kernel() for attention that gives each query back."""

    def attention(query, key, value, output, save_kv_cache, layer_id, **_):
        output.copy_(query)

    return cpu_kernel("unified_attention_with_output", attention)


def lists_of(rows):
    """The lists by layer that a forward context takes, of the overlay's rows of layers."""
    return {name: [getattr(row, part) for row in rows] for name, part in layers.LISTS.items()}


def split_ops():
    """The ops at which a compiler configured now would split."""
    made = compilation_config.CompilationConfig([8], "eager")
    if hasattr(made, "split_ops"):
        return made.split_ops
    return backend.SPLIT_OPS
