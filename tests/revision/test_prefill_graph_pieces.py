"""Where the release's compiler splits real models, and that the pieces compute what eager does."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from host import graph, late

with late.modules():
    from sglang.srt.layers import radix_attention
    from sglang.srt.layers.moe.fused_moe_triton import layer
    from sglang.srt.models import nemotron_h
    from sglang.srt.prefill_graph.model import layers, stack

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.10")
DENSE, MOE = "M-M*M-", "ME*E"
WITH_EXPERTS = pytest.mark.revision(">=0.5.6")  # of NemotronH
TOKENS, REAL = 8, 5
MAMBA2, ATTENTION = (
    f"sglang.{name}_with_output" for name in ("nemotron_mamba2", "unified_attention")
)
PATTERN_OPS = {"M": MAMBA2, "*": ATTENTION}


def mean_of_all(hidden_states):
    """In place of Mamba2 and attention: tokens depend on all others; padding would spread."""
    return hidden_states + hidden_states.mean(0, keepdim=True)


class Backend:
    """The linear attention's stand-in: metadata for REAL tokens, and what its calls were given."""

    def __init__(self):
        self.forward_metadata = SimpleNamespace(num_prefill_tokens=REAL, num_decodes=0)
        self.calls = []

    def forward(self, *, mixer, layer_id, hidden_states, output, use_triton_causal_conv):
        self.calls.append((layer_id, tuple(hidden_states.shape)))
        output.copy_(mean_of_all(hidden_states))


def nemotron(build_model, pattern):
    return build_model("nemotron_h_moe", device="cpu", dtype=torch.float32, pattern=pattern)


def traced(monkeypatch, model):
    """The model compiled, split and run by the release, with CPU kernels where it has none."""

    def halve(hidden_states, *_):
        return hidden_states * 0.5

    backend = Backend()
    batch = graph.prefill_batch(TOKENS, extend_num_tokens=REAL)
    batch.attn_backend = SimpleNamespace(linear_attn_backend=backend)
    lists = graph.lists_of(layers.describe(stack.find(model).layers))
    with contextlib.ExitStack() as kernels:
        kernels.enter_context(graph.copying_attention())
        if hasattr(torch.ops.sglang, "moe_forward_piecewise_cuda_graph_impl"):
            kernels.enter_context(graph.cpu_kernel("moe_forward_piecewise_cuda_graph_impl", halve))
        # 0.5.6 traces through the experts, whose kernels for the CPU know other activations
        else:
            monkeypatch.setattr(
                layer.FusedMoE, "forward", lambda self, hidden_states, *_: halve(hidden_states)
            )
        return graph.traced_forward(model, batch, lists, TOKENS), backend


@pytest.mark.parametrize("pattern", [DENSE, pytest.param(MOE, marks=WITH_EXPERTS)])
def test_split_at_every_layer_with_state_and_nowhere_else(pattern, build_model, monkeypatch):
    """Pieces alternate: captured, split op, captured, … with one split op for each M and * of the
    pattern, in order."""
    result, backend = traced(monkeypatch, nemotron(build_model, pattern))
    ops = [PATTERN_OPS[layer] for layer in pattern if layer in PATTERN_OPS]
    assert [piece.op for piece in result.pieces] == ["", *(name for op in ops for name in (op, ""))]
    assert all(piece.has_size for piece in result.pieces if not piece.op), "one trace for all sizes"
    once = [(i, (REAL, 128)) for i, layer in enumerate(pattern) if layer == "M"]
    assert backend.calls == 3 * once  # to trace, and two runs


def test_the_pieces_compute_what_eager_does_on_the_real_tokens(build_model, monkeypatch):
    """Eager on the real tokens alone, against the split forward on padded ones."""
    model = nemotron(build_model, DENSE)
    result, backend = traced(monkeypatch, model)
    monkeypatch.setattr(nemotron_h, "HybridLinearAttnBackend", SimpleNamespace)
    monkeypatch.setattr(nemotron_h, "Mamba2AttnBackend", Backend)
    monkeypatch.setattr(
        radix_attention.RadixAttention, "forward", lambda self, q, k, v, forward_batch, *_, **__: q
    )
    batch = graph.prefill_batch(REAL)
    batch.attn_backend = SimpleNamespace(linear_attn_backend=backend)
    with torch.no_grad():
        ids = torch.arange(REAL)
        eager = type(model.model).forward(model.model, ids, ids, batch)
    for output in result.outputs:
        torch.testing.assert_close(output[:REAL], eager)
        assert output.isfinite().all()


@WITH_EXPERTS
def test_experts_leave_the_second_stream_alone_in_the_graph_only(monkeypatch):
    """Both ways of NemotronH's MoE are stood in for, on what it takes for CUDA."""
    monkeypatch.setattr(nemotron_h, "_is_cuda", True)
    moe = SimpleNamespace(
        _forward_core_shared_routed_overlap=lambda _: "two", _forward_core_normal=lambda _: "one"
    )

    def streams():
        return nemotron_h.NemotronHMoE._forward_core(moe, None)

    assert streams() == "two"
    with graph.piecewise_context_manager.enable_piecewise_cuda_graph():
        assert streams() == "one"
    assert streams() == "two"
    traced = torch.compile(lambda x: x + (streams() == "one"), backend="eager", fullgraph=True)
    assert traced(torch.zeros(())) == 1
