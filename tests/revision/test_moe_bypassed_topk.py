"""Which prefill graph the server's arguments end up with, for MoE kernels that bypass top-k."""

import dataclasses
import json
import logging
import os
from unittest.mock import patch

import pytest
from host import late

with late.modules():
    from sglang.srt import server_args

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.15")

SIZES = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=32,
    vocab_size=128,
    max_position_embeddings=256,
    num_experts_per_tok=2,
    torch_dtype="bfloat16",
)
QWEN3_MOE = dict(
    SIZES,
    architectures=["Qwen3MoeForCausalLM"],
    model_type="qwen3_moe",
    moe_intermediate_size=32,
    num_experts=4,
)
GPT_OSS = dict(
    SIZES,
    architectures=["GptOssForCausalLM"],
    model_type="gpt_oss",
    num_local_experts=4,
    layer_types=["sliding_attention", "full_attention"],
)


@pytest.fixture
def resolve(tmp_path):
    """Real server arguments, resolved as at start-up, for a model of which there is only a
    config."""

    def build(config=QWEN3_MOE, **options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return server_args.ServerArgs(model_path=str(tmp_path), device="cuda", **options)

    with patch.dict(os.environ):  # resolving sets some variables
        yield build


def chosen(backend):
    """The options that ask for a prefill graph explicitly, in the words of the release."""
    if "cuda_graph_backend_prefill" in {
        field.name for field in dataclasses.fields(server_args.ServerArgs)
    }:
        return {"cuda_graph_backend_prefill": backend}
    return {
        "tc_piecewise": {"enforce_piecewise_cuda_graph": True},
        "breakable": {"enable_breakable_cuda_graph": True},
    }[backend]


def prefill_graph(args):
    if hasattr(args, "cuda_graph_config"):
        return args.cuda_graph_config.prefill.backend
    if args.disable_piecewise_cuda_graph:
        return "disabled"
    return "breakable" if args.enable_breakable_cuda_graph else "tc_piecewise"


def decode_graph_is_on(args):
    if hasattr(args, "cuda_graph_config"):
        return args.cuda_graph_config.decode.backend == "full"
    return not args.disable_cuda_graph


def warnings(caplog, backend):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
        and backend in record.getMessage()
        and "top-k" in record.getMessage()
    ]


@pytest.mark.parametrize(
    "backend", ["flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm"]
)
def test_a_bypassing_backend_turns_the_piecewise_graph_off(resolve, caplog, backend):
    """On B200 the server died at start-up, in the capture around such a kernel."""
    with caplog.at_level(logging.WARNING):
        args = resolve(moe_runner_backend=backend)
    assert prefill_graph(args) == "disabled"
    assert decode_graph_is_on(args)
    assert len(warnings(caplog, backend)) == 1
    assert backend in args.prefill_graph_refusal, "what the report says"


def test_a_backend_that_was_chosen_automatically_counts_too(resolve, caplog):
    """mxfp8 picks the kernel long after the other rules about the graph have run."""
    with caplog.at_level(logging.WARNING):
        args = resolve(quantization="mxfp8")
    assert args.moe_runner_backend == "flashinfer_trtllm"
    assert prefill_graph(args) == "disabled"
    assert len(warnings(caplog, "flashinfer_trtllm")) == 1


@pytest.mark.parametrize("backend", ["auto", "triton", "flashinfer_trtllm_routed"])
def test_other_backends_keep_the_graph(resolve, caplog, backend):
    with caplog.at_level(logging.WARNING):
        args = resolve(moe_runner_backend=backend)
    assert prefill_graph(args) == "tc_piecewise"
    assert not warnings(caplog, backend)


def test_gpt_oss_keeps_the_graph(resolve, caplog):
    """Its whole MoE block is one op, so the kernel gets all it needs."""
    with caplog.at_level(logging.WARNING):
        args = resolve(GPT_OSS, moe_runner_backend="flashinfer_mxfp4", attention_backend="triton")
    assert prefill_graph(args) == "tc_piecewise"
    assert not warnings(caplog, "flashinfer_mxfp4")


@pytest.mark.parametrize("graph", ["tc_piecewise", "breakable"])
def test_a_graph_that_was_asked_for_stays(resolve, caplog, graph):
    with caplog.at_level(logging.WARNING):
        args = resolve(moe_runner_backend="flashinfer_trtllm", **chosen(graph))
    assert prefill_graph(args) == graph
    assert not warnings(caplog, "flashinfer_trtllm")


def test_a_graph_that_is_off_anyway_gets_no_warning(resolve, caplog):
    with caplog.at_level(logging.WARNING):
        args = resolve(moe_runner_backend="flashinfer_trtllm", enable_torch_compile=True)
    assert prefill_graph(args) == "disabled"
    assert not warnings(caplog, "flashinfer_trtllm")
