"""What a breakable graph of 0.5.14 or later records, and leaves to its breaks: without a GPU."""

import contextlib
import functools
import importlib

import torch

from . import beside, bodies, graph, late, process, recorded, served

with late.modules():
    from sglang.srt.model_executor.runner_backend_utils import tc_piecewise_cuda_graph
    from sglang.srt.model_executor.runner_utils import forward_batch, prefill_graph

_BREAKABLE = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"
CAPTURED, BREAK = "captured", "break"


def of(model, monkeypatch, tokens=8, prepare=None):
    """(at the capture, at a replay): the calls of attention and of Mamba2 mixers, in order, each as
    (what, CAPTURED or BREAK).

    The release's own primitive captures the layer stack of `model`, built on the CPU, on a stand-in
    for CUDA graphs. The attention backend notes the calls instead of computing anything. A captured
    call's Python does not run at a replay. prepare(backend, note, batch): what is done before, with
    that backend and the batch of the capture; note(what): notes a call.
    """
    seen, batch = [], batch_of(tokens, extend_seq_lens=torch.tensor([tokens]))
    backend = _backend(seen, batch)
    if prepare:
        prepare(backend, functools.partial(_note, seen), batch)
    ids = positions = torch.arange(tokens)
    with recording(monkeypatch), torch.no_grad():
        primitive = importlib.import_module(f"{_BREAKABLE}.breakable_cuda_graph")
        if hasattr(primitive, "get_device_module"):
            monkeypatch.setattr(primitive, "get_device_module", lambda: torch.cuda)
        made = primitive.BreakableCUDAGraph()
        with (
            around(model.model, batch, backend, tokens),
            primitive.BreakableCUDAGraphCapture(cuda_graph=made, pool=(0, 1)),
        ):
            model.model(ids, positions, batch)
        at_capture = list(seen)
        seen.clear()
        with around(model.model, batch, backend, tokens):
            made.replay()
        return at_capture, seen


@contextlib.contextmanager
def around(layer_model, batch, backend, tokens):
    """What the release's runner sets around a capture, and around a replay in `tokens` rows."""
    with contextlib.ExitStack() as stack:
        for context in _contexts(layer_model, batch, backend, tokens):
            stack.enter_context(context)
        yield


_OPS = {
    "layers.radix_attention": "unified_attention_with_output",
    "layers.radix_linear_attention": "unified_linear_attention_with_output",
    "models.nemotron_h": "nemotron_mamba2_with_output",
}

_MODELS = "models.qwen3_vl", "models.qwen3_5", "models.qwen3_next"


@contextlib.contextmanager
def recording(monkeypatch):
    """recorded.recording with the ops that layers call, which have no kernel for the CPU."""
    for module in (*_OPS, *_MODELS):  # before decorators are changed
        if late.has(f"sglang.srt.{module}"):
            importlib.import_module(f"sglang.srt.{module}")
    ops = {}
    for module, name in _OPS.items():
        body = getattr(bodies.load_undecorated(f"sglang.srt.{module}", monkeypatch), name, None)
        if body is not None:  # later attention is a method
            ops[name] = body
    with recorded.recording(monkeypatch, **ops):
        yield


def batch_of(tokens, **fields):
    """A prefill of `tokens` as the release's runner counts them; `fields` are set on top."""
    values = dict(out_cache_loc=torch.arange(tokens), positions=torch.arange(tokens))
    batch = graph.prefill_batch(tokens, **(values | fields))
    batch.num_token_non_padded_cpu = batch.global_num_token_non_padded_cpu = (
        tokens  # the latter from 0.5.20
    )
    return batch


def _note(seen, what):
    seen.append((what, BREAK if recorded.Graph.recorder.target is None else CAPTURED))


def _backend(seen, batch):
    """A hybrid backend whose halves note that they are called, and where."""

    def mix(half, hidden_states, output, **_):
        _note(seen, "mixer")
        return torch.zeros_like(hidden_states) if output is None else output.zero_()

    def attend(q):
        _note(seen, "attention")
        return torch.zeros_like(q)

    made = beside.of(mix, attend)
    made.init_forward_metadata(batch)
    return made


def forward_context_of(batch, layers, tokens, raw_tokens):
    """The context of a replay in `tokens` rows, of which `raw_tokens` came to the runner."""
    return process.call(
        tc_piecewise_cuda_graph.set_tc_piecewise_forward_context,
        forward_batch=batch,
        attention_layers=layers,
        quant_config=None,
        moe_layers=[],
        moe_fusions=[],
        num_tokens=tokens,
        raw_num_tokens=raw_tokens,
    )


def _contexts(layer_model, batch, backend, tokens):
    """The contexts of `around`, in their order."""
    yield served.published(backend)
    layers = [
        layer.attn if hasattr(layer, "attn") else getattr(layer.mixer, "attn", layer)
        for layer in layer_model.layers
    ]
    yield forward_context_of(batch, layers, tokens, tokens)
    if late.has(prefill_graph.__name__):
        yield forward_batch.set_forward_batch(batch)
        yield prefill_graph.prefill_graph_scope(full_graph=False, raw_num_tokens=tokens)
    yield importlib.import_module(f"{_BREAKABLE}.context").enable_breakable_cuda_graph()
