"""Which prefill graph the server's arguments end up with, for MoE kernels that bypass top-k."""

import logging

import pytest
from host import logged, models, process

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.15")

CONFIGS = models.read("unbuilt")


def chosen(backend):
    """The options that ask for a prefill graph explicitly, in the words of the release."""
    if "cuda_graph_backend_prefill" in process.known():
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


@pytest.fixture
def settled(resolve, caplog):
    """settled(**options): the server arguments, and the warnings about top-k."""

    def settle(name="Qwen3-MoE", **options):
        with caplog.at_level(logging.WARNING):
            args = resolve(CONFIGS[name], **options)
        return args, logged.warnings(caplog, "top-k")

    return settle


@pytest.mark.parametrize(
    "backend", ["flashinfer_trtllm", "flashinfer_mxfp4", "experimental_sgl_trtllm"]
)
def test_a_bypassing_backend_turns_the_piecewise_graph_off(settled, backend):
    """On B200 the server died at start-up, in the capture around such a kernel."""
    args, [warning] = settled(moe_runner_backend=backend)
    assert prefill_graph(args) == "disabled"
    assert decode_graph_is_on(args)
    assert backend in warning
    assert backend in args.prefill_graph_refusal, "what the report says"


def test_a_backend_that_was_chosen_automatically_counts_too(settled):
    """mxfp8 picks the kernel long after the other rules about the graph have run."""
    args, [warning] = settled(quantization="mxfp8")
    assert args.moe_runner_backend == "flashinfer_trtllm" and "flashinfer_trtllm" in warning
    assert prefill_graph(args) == "disabled"


KEPT = {backend: dict(moe_runner_backend=backend) for backend in ("auto", "triton")} | {
    "routed": dict(moe_runner_backend="flashinfer_trtllm_routed"),
    # its whole MoE block is one op, so the kernel gets all it needs
    "GptOss": dict(
        name="GptOss of 2 heads", moe_runner_backend="flashinfer_mxfp4", attention_backend="triton"
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_others_keep_the_graph(settled, case):
    args, warnings = settled(**KEPT[case])
    assert prefill_graph(args) == "tc_piecewise" and not warnings


@pytest.mark.parametrize("graph", ["tc_piecewise", "breakable"])
def test_a_graph_that_was_asked_for_stays(settled, graph):
    args, warnings = settled(moe_runner_backend="flashinfer_trtllm", **chosen(graph))
    assert prefill_graph(args) == graph and not warnings


def test_a_graph_that_is_off_anyway_gets_no_warning(settled):
    args, warnings = settled(moe_runner_backend="flashinfer_trtllm", enable_torch_compile=True)
    assert prefill_graph(args) == "disabled" and not warnings
