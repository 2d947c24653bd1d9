"""The piecewise graph without a GPU: the release's own tracer, splitter and context, and stand-ins
for captures and kernels."""

import contextlib
import importlib
from dataclasses import dataclass

import torch

from . import process


def context_module():
    return importlib.import_module("sglang.srt.compilation.piecewise_context_manager")


def forward_context(batch, attention_layers, moe_layers=(), moe_fusions=()):
    """The release's set_forward_context, with as many of its arguments as it has."""
    return process.call(
        context_module().set_forward_context,
        forward_batch=batch,
        attention_layers=list(attention_layers),
        quant_config=None,
        moe_layers=list(moe_layers),
        moe_fusions=list(moe_fusions),
        dsa_indexers=[],
    )


def prefill_batch(tokens, **fields):
    """A ForwardBatch of one prefill of `tokens`; `fields` are set on top."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    return ForwardBatch(
        **{
            **dict(
                forward_mode=ForwardMode.EXTEND,
                batch_size=1,
                input_ids=torch.zeros(tokens, dtype=torch.int64),
                req_pool_indices=torch.arange(1),
                seq_lens=torch.tensor([tokens]),
                out_cache_loc=None,
                seq_lens_sum=tokens,
                extend_num_tokens=tokens,
            ),
            **fields,
        }
    )


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


@dataclass(frozen=True)
class Piece:
    """A piece of the split forward. op: the split op's name, "" for a piece that is captured.
    has_size: a symbolic number of tokens is among its inputs; the release's runner captures no
    piece without."""

    op: str
    has_size: bool


@dataclass(frozen=True)
class Traced:
    """A forward compiled by the release's own backend. outputs: of the first and of a second
    run."""

    pieces: tuple[Piece, ...]
    outputs: tuple[torch.Tensor, ...]


def traced_forward(model, batch, lists, tokens):
    """Compile `model.model` as the release's runner does, split it, and run it twice on `tokens`
    tokens.

    lists: attention_layers, and where the release has them moe_layers and moe_fusions. Split ops
    need CPU kernels.
    """
    compile_, config = (
        importlib.import_module(f"sglang.srt.compilation.{name}")
        for name in ("compile", "compilation_config")
    )
    backend = importlib.import_module("sglang.srt.compilation.backend")
    # sizes it would capture: not the one that is run
    settings = config.CompilationConfig([tokens + 1], "eager")
    made = []

    def factory(graph, inputs):
        made.append(backend.SGLangBackend(settings, object()))
        return made[0](graph, inputs)

    torch._dynamo.reset()
    compile_.install_torch_compiled(
        model.model,
        fullgraph=True,
        dynamic_arg_dims=None,
        compile_config=settings,
        graph_pool=object(),
        backend_factory=factory,
    )
    ids = torch.arange(tokens)
    compiling = getattr(
        context_module(), "enable_piecewise_cuda_graph_compile", contextlib.nullcontext
    )
    # up to 0.5.9; later the context alone decides
    compiled = getattr(compile_, "set_compiled", contextlib.nullcontext)
    with (
        context_module().enable_piecewise_cuda_graph(),
        compiled(True),
        compiling(),
        torch.no_grad(),
        forward_context(batch, **lists),
    ):
        outputs = tuple(model.model.forward(ids, ids, batch) for _ in range(2))
    return Traced(tuple(_piece(item) for item in made[0].piecewise_graphs), outputs)


def _piece(item):
    nodes = item.graph.graph.nodes
    op = next(
        (
            str(node.target)
            for node in nodes
            if item.is_splitting_graph and node.op == "call_function"
        ),
        "",
    )
    sizes = [
        node
        for node in nodes
        if node.op == "placeholder" and isinstance(node.meta.get("example_value"), torch.SymInt)
    ]
    return Piece(op, bool(sizes))


@contextlib.contextmanager
def cpu_kernel(op, function):
    """Give a GPU-only op of the release a kernel for CPU tensors, for as long as the context
    lasts."""
    library = torch.library.Library("sglang", "IMPL")
    library.impl(op, function, "CPU")
    try:
        yield
    finally:
        library._destroy()


def split_ops():
    """The ops at which a compiler configured now would split."""
    from sglang.srt.compilation.compilation_config import CompilationConfig

    made = CompilationConfig([8], "eager")
    if hasattr(made, "split_ops"):
        return made.split_ops
    return importlib.import_module("sglang.srt.compilation.backend").SPLIT_OPS
