"""NemotronH's squared ReLU: one kernel with the bits of PyTorch's two."""

import math

import pytest
import torch
from host import late
from host.compiled import compiled

with late.modules():
    from sglang.srt.layers import activation
    from sglang.srt.prefill_graph.kernels import relu2

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.13")

SHAPES = {
    "rows of 16": (5, 1040),
    "one program to the full": (4096,),
    "odd": (3, 7, 61),
    "less than a block": (15,),
    "one": (1,),
    "programs": (9, 1111),
}
CASES = {
    f"{name}, {dtype}": dict(shape=shape, dtype=dtype)
    for name, shape in SHAPES.items()
    for dtype in ("bfloat16", "float16", "float32")
}


NUMBERS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 255.9, 256.1]
SQUARES_AT_LIMITS = [1e-38, -1e-38, 1e-22, 1e-23, 3e38, 2e-4]  # of what a dtype can hold
EDGES = NUMBERS + SQUARES_AT_LIMITS


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU; the interpreter takes it from where it is."""

    is_cuda = True


def values(shape, dtype):
    """Numbers over the dtype's whole range, denormal ones too, and EDGES."""
    torch.manual_seed(1)
    count = torch.Size(shape).numel()
    least, most = {
        torch.bfloat16: (-135, 128),
        torch.float16: (-26, 16),
        torch.float32: (-150, 128),
    }[dtype]
    made = (
        torch.randn(count, dtype=torch.float64)
        * torch.empty(count, dtype=torch.float64).uniform_(least, most).exp2()
    )
    edges = torch.tensor(EDGES[:count], dtype=torch.float64)
    made[: len(edges)] = edges
    return made.to(dtype).view(shape)


def compare(shape, dtype):
    """Returns how many elements the layer gives other bits than the two operations (NaN is NaN),
    and how many launches it takes: each goes through the module's launch()."""
    x = values(shape, getattr(torch, dtype))
    launched, launch = [], relu2.launch
    relu2.launch = lambda x: (launched.append(x), launch(x))[1]
    try:
        got = activation.ReLU2()(x.as_subclass(OnGpu)).as_subclass(torch.Tensor)
    finally:
        relu2.launch = launch
    clipped = torch.nn.functional.relu(x)
    expected = clipped * clipped
    assert got.dtype == expected.dtype and got.shape == expected.shape
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    same = (got.view(bits) == expected.view(bits)) | (got.isnan() & expected.isnan())
    return dict(other=(~same).sum().item(), launches=len(launched))


@pytest.mark.parametrize("case", CASES)
def test_the_layer_launches_one_kernel_with_the_same_bits(case, compared):
    assert compared[case] == dict(other=0, launches=1)


def refused():
    """What the kernel does not take, by name."""
    x = torch.randn(6, 8)
    return {
        "CPU": x,
        "columns of a wider tensor": x.as_subclass(OnGpu)[:, :4],
        "transposed": x.as_subclass(OnGpu).t(),
        "float64": x.double().as_subclass(OnGpu),
        "empty": x[:0].as_subclass(OnGpu),
        "needs a gradient": x.clone().requires_grad_().as_subclass(OnGpu),
    }


@pytest.mark.parametrize("what", refused())
def test_what_the_kernel_does_not_take_is_computed_as_before(what, monkeypatch):
    monkeypatch.setattr(relu2, "launch", None)
    x = refused()[what]
    clipped = torch.relu(x)
    assert torch.equal(activation.ReLU2()(x), clipped * clipped)
    assert relu2.fits(torch.randn(6, 8).as_subclass(OnGpu))


def test_a_traced_graph_keeps_the_two_operations(monkeypatch):
    """The piecewise graph traces the model as one graph; inductor makes one kernel of the two."""
    monkeypatch.setattr(relu2, "DTYPES", None)  # what asks for them is not traced
    graphs = []

    def backend(graph, example_inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    torch._dynamo.reset()
    x = torch.randn(4, 8)
    got = torch.compile(activation.ReLU2(), fullgraph=True, dynamic=True, backend=backend)(x)
    torch._dynamo.reset()
    assert torch.equal(got, torch.relu(x) ** 2)
    assert len(graphs) == 1 and len(graphs[0]) == 2, graphs


def test_nemotron_h_uses_the_layer(build_model):
    model = build_model("nemotron_h")
    used = [layer.mixer.act_fn for layer in model.model.layers if "MLP" in type(layer).__name__]
    assert used and all(type(module) is activation.ReLU2 for module in used)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("kind, wide", [("bf16", 4), ("fp16", 4), ("fp32", 8)])
def test_the_kernel_spills_nothing_and_moves_16_bytes_at_once(kind, wide, capability):
    """16 divides the number of elements wherever it divides the layer's width."""
    signature = {"x_ptr": f"*{kind}", "y_ptr": f"*{kind}", "total": "i32"}
    constexprs, options = {"BLOCK": relu2.BLOCK}, {"num_warps": 4}
    made = compiled(
        relu2._relu2_kernel, signature, constexprs, options, capability, aligned=list(signature)
    )
    assert made.spilled == 0 and made.registers <= 64 and made.shared == 0, made
    assert made.ptx.count("ld.global.v4.b32") == made.ptx.count("st.global.v4.b32") == wide
    assert "mul.ftz" not in made.ptx and "mul.rn.ftz" not in made.ptx
