"""The host itself: what the other tests stand on is real, and is the tree under test."""

import importlib
import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "sglang.srt.model_executor.model_runner",
        "sglang.srt.models.nemotron_h",
        "sglang.srt.models.qwen3_next",
    ],
)
def test_modules_come_from_the_tree(module, tree):
    assert importlib.import_module(module).__file__.startswith(str(tree))


def test_the_kernel_package_is_the_real_one():
    import torch

    sgl_kernel = importlib.import_module("sgl_kernel")
    assert sgl_kernel.__version__
    assert torch.ops.sgl_kernel.rmsnorm
    assert not torch.cuda.is_available()


def layer_types(model):
    return [type(layer).__name__ for layer in model.model.layers]


def test_nemotron_h(build_model):
    model = build_model("nemotron_h")
    assert [hasattr(layer, "mixer") for layer in model.model.layers] == [True] * 6
    assert [
        name.removeprefix("NemotronH").removesuffix("DecoderLayer") for name in layer_types(model)
    ] == [
        "Mamba",
        "MLP",
        "Mamba",
        "Attention",
        "Mamba",
        "MLP",
    ]
    assert all(parameter.is_meta for parameter in model.parameters())


def test_qwen3_next(build_model):
    model = build_model("qwen3_next", num_hidden_layers=4)
    assert layer_types(model) == ["Qwen3HybridLinearDecoderLayer"] * 3 + [
        "Qwen3HybridAttentionDecoderLayer"
    ]


def test_deepseek_with_sparse_attention(build_model):
    model = build_model("deepseek_v32")
    assert all(hasattr(layer.self_attn, "indexer") for layer in model.model.layers)


def test_llama_on_the_cpu(build_model):
    import torch

    model, again = (build_model("llama", device="cpu", dtype=torch.float32) for _ in range(2))
    assert len(model.model.layers) == 4
    weight = model.model.layers[0].mlp.gate_up_proj.weight
    assert weight.dtype == torch.float32 and weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(weight, again.model.layers[0].mlp.gate_up_proj.weight)


def test_the_unpatched_release_is_the_control(run_pristine, pristine, tree):
    assert not pristine.is_relative_to(tree)
    origin = run_pristine(
        "import importlib.util; print(importlib.util.find_spec('sglang').origin)"
    ).strip()
    assert origin == str(pristine / "__init__.py")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_are_compiled_for_gpus_that_are_not_there(capability):
    from host import compiled, sample_kernels

    signature = {"x_ptr": "*bf16", "y_ptr": "*bf16"}
    small, large = (
        compiled.compiled(
            sample_kernels.centre, signature, {"SIZE": size}, {"num_warps": 1}, capability
        )
        for size in (256, 32768)
    )
    assert small.spilled == 0 and 8 < small.registers < 64 and small.shared == 0
    assert large.spilled > 0
    assert "ld.global.v4" in small.ptx
    unaligned = compiled.compiled(
        sample_kernels.centre, signature, {"SIZE": 256}, {"num_warps": 1}, capability, aligned=[]
    )
    assert "ld.global.v4" not in unaligned.ptx


def test_a_module_that_cannot_run_interpreted_says_why():
    """And the next one runs all the same."""
    from host import interpreted

    with pytest.raises(AssertionError, match="ended with 1: (?s:.*)No module named"):
        interpreted.run("host.references.nothing", {})
    assert interpreted.run("host.references.compare_ssd", {}) == {}


def test_the_process_of_interpreted_kernels_ends_beside_what_a_library_has_started(tmp_path):
    """torch 2.8 starts inductor's workers when it is imported; they end behind their parent
    alone."""
    started = tmp_path / "started"
    (tmp_path / "library.py").write_text(
        "import pathlib, subprocess\nmade = subprocess.Popen(['sleep', '60']);"
        f" pathlib.Path({str(started)!r}).write_text(str(made.pid))\n"
    )
    ask = (
        "import socket; from host import interpreted; interpreted.LIBRARIES = ('library',)\n"
        f"listening = socket.socket(socket.AF_UNIX); listening.bind({str(tmp_path / 'socket')!r})\n"
        "listening.listen(); interpreted.serve(listening)\n"
    )
    here = os.path.dirname(__file__)
    path = os.pathsep.join([str(tmp_path), here, os.environ["PYTHONPATH"]])
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask],
            stdin=subprocess.DEVNULL,
            timeout=30,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert done.returncode == 0
    finally:
        os.kill(int(started.read_text()), signal.SIGKILL)
