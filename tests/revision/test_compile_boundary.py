"""What a layer hands to the next one, in a forward that torch.compile traces as one graph."""

import contextlib

import pytest
import torch
from host import graph, hybrids, late, segments, served

with late.modules():
    from sglang.srt.compilation import compile as compilation
    from sglang.srt.eplb import expert_distribution
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.attention.dsa import dsa_indexer, dsa_prefill_cuda_graph
    from sglang.srt.layers.layer_boundary import layout, output
    from sglang.srt.layers.layer_boundary.residual import add_norm
    from sglang.srt.layers.layer_boundary.residual import stream as residual
    from sglang.srt.model_executor import cuda_graph_config
    from sglang.srt.model_executor.runner_backend_utils import tc_piecewise_cuda_graph as pieces
    from sglang.srt.models import qwen2_moe, qwen3_next

pytestmark = pytest.mark.revision(">=0.5.21,<0.5.22")
TOKENS = 8


def rows(x):
    """One number for each row of `x`, [tokens, …]."""
    return x.flatten(1).mean(1)


def attention(query, key, value, output, *_, **__):
    output.copy_(rows(query).view(-1, *[1] * (output.dim() - 1)).expand_as(output))


def linear_attention(mixed_qkv, a, b, output, layer_id):
    output.copy_(rows(mixed_qkv).view(1, -1, 1, 1).expand_as(output))


def experts(hidden_states, *_):
    return hidden_states * 0.5


def select_nothing(layer_id, x, q_lora, positions, topk_result):
    topk_result.fill_(-1)


OPS = {
    "unified_attention_with_output": attention,
    "unified_linear_attention_with_output": linear_attention,
    "moe_forward_piecewise_cuda_graph_impl": experts,
    "pcg_dsa_indexer_prefill_split": select_nothing,
}


def index(indexer, x, q_lora, positions, forward_batch, layer_id, **_):
    """The indexer's way through the graph, without its kernels."""
    found = torch.empty((len(x), indexer.index_topk), dtype=torch.int32)
    dsa_prefill_cuda_graph.pcg_dsa_indexer_prefill_split(layer_id, x, q_lora, positions, found)
    return found


def add_gated(hidden_states, gate, shared, output):
    output.add_((hidden_states @ gate.view(-1, 1)).sigmoid() * shared)


@pytest.fixture
def build(build_model, monkeypatch):
    """build(kind): a small model on the CPU, torch in place of what is a GPU's kernel only."""
    monkeypatch.setattr(qwen3_next, "fused_qkvzba_split_reshape_cat", hybrids._split)
    monkeypatch.setattr(qwen3_next.RMSNormGated, "forward", hybrids._gated_norm)
    monkeypatch.setattr(qwen2_moe, "fused_gate_sigmoid_mul_add", add_gated)
    monkeypatch.setattr(dsa_indexer.Indexer, "forward", index)
    prefill = cuda_graph_config.PhaseConfig(backend="tc_piecewise", bs=[TOKENS])

    def make(kind):
        graphs = cuda_graph_config.CudaGraphConfig(prefill=prefill)
        model = build_model(
            kind,
            device="cpu",
            dtype=torch.float32,
            initializer_range=0.1,
            server_args=dict(cuda_graph_config=graphs),
        )
        if hasattr(model, "post_load_weights"):
            model.post_load_weights()
        expert_distribution.get_global_expert_distribution_recorder()
        return model

    return make


class Attention:
    """The attention backend, of which a layer asks these names alone."""

    prefill_attention_backend_str = decode_attention_backend_str = "dsa"


def run(model, tokens):
    """One prefill in the runner's contexts."""
    batch = segments.batch_of(tokens)
    dp_attention.set_is_extend_in_batch(False)
    with (
        torch.no_grad(),
        served.published(Attention()),
        pieces.set_tc_piecewise_forward_context(batch, [], None, [], []),
        pieces.enable_tc_piecewise_cuda_graph(),
    ):
        return model.model.forward(torch.arange(tokens), torch.arange(tokens), batch)


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa", "qwen3_next"])
def test_a_layer_stack_is_one_graph(kind, build):
    """As the release's runner has it: an eager forward, then one that is compiled for all sizes."""
    model, made = build(kind), []

    def keep(traced, inputs):
        made.append(traced)
        return traced.forward

    with contextlib.ExitStack() as kernels:
        for name, function in OPS.items():
            kernels.enter_context(graph.cpu_kernel(name, function))
        eager = [run(model, tokens) for tokens in (TOKENS, TOKENS // 2)]
        torch._dynamo.reset()
        compilation.install_torch_compiled(model.model, backend_factory=keep)
        compiled = [run(model, tokens) for tokens in (TOKENS, TOKENS // 2)]

    torch.testing.assert_close(compiled, eager)
    assert len(made) == 1, "compiled once more for another size"
    ops = [str(node.target) for node in made[0].graph.nodes]
    assert sum("attention_with_output" in op for op in ops) == len(model.model.layers)


class Pair:
    """A group of two ranks that hold the same."""

    def all_reduce(self, x):
        return x * 2


def leave_declared(stream, x):
    return stream.leave(x, add_norm.ADD, declared_sum=layout.SumGroup.TP)


def leave_unreduced(stream, x):
    return stream.leave(output.UnreducedOutput(x, group=Pair()), add_norm.ADD)


@pytest.mark.parametrize("leave, given", [(leave_declared, 1.0), (leave_unreduced, 2.0)])
def test_a_sum_that_an_output_owes_is_traced(leave, given, monkeypatch):
    """One GPU owes none. given: what a read gets of an output of 1."""
    monkeypatch.setattr(residual, "_sum_group", lambda group: Pair())

    def forward(x):
        stream = residual.ResidualStream(x * 0)
        handle = leave(stream, x)
        read, _ = stream.input(handle)
        return output.reduce_output(read), stream.complete(handle)

    ones = torch.ones(3)
    compiled = torch.compile(forward, fullgraph=True, backend="eager")(ones)

    torch.testing.assert_close(compiled, (ones * given, ones * 2))
