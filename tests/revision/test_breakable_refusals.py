"""What the breakable graph refuses: models, with a reason; arguments, with an error at start."""

import argparse
import json
from types import SimpleNamespace

import pytest
import torch
from host import late, process
from host.models import KINDS

with late.modules():
    from sglang.srt import server_args
    from sglang.srt.prefill_graph.breakable import arguments as breakable_arguments
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.prefill_graph.compat import capture
    from sglang.srt.prefill_graph.report import verdict

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
OWN_FLAG = pytest.mark.revision("<0.5.11")  # releases that have the flag from the queue
OPT_OUT = pytest.mark.revision(">=0.5.10")
# releases with a rule about arguments that the queue says nothing of
OWN_RULE = pytest.mark.revision(">=0.5.11")


def asked(decided, model, **fields):
    """`decided`, where the breakable graph is asked for, and the report's verdict."""
    made, warnings = decided(model, enable_breakable_cuda_graph=True, **fields)
    return made, warnings, verdict.explain(made)


@pytest.mark.parametrize("kind", ["llama", "nemotron_h", "qwen3_next", "falcon_h1", "qwen3_5"])
def test_models_whose_layers_break_are_captured(build_model, decided, kind):
    runner, warnings, verdict = asked(decided, build_model(kind), is_multimodal=kind == "qwen3_5")
    assert runner.piecewise_cuda_graph_runner is not None and not warnings
    assert verdict.verdict == "on" and runner.prefill_graph_refusal is None
    if kind == "qwen3_5":
        breaks = [type(layer).__name__ for layer in runner.attention_layers]
        assert breaks == (["RadixLinearAttention"] * 3 + ["RadixAttention"]) * 2


def test_a_mixer_beside_attention_is_refused_by_name(unbroken, decided):
    """Its attention breaks the graph, its Mamba2 would be captured with one batch's state slots.
    The first rank alone says so."""
    runner, [warning], verdict = asked(decided, unbroken)
    assert runner.piecewise_cuda_graph_runner is None
    assert verdict.reason.startswith("layer 0 (Unbroken) runs a Mamba2 mixer outside of every")
    assert warning.endswith(verdict.reason)
    runner, warnings, _ = asked(decided, unbroken, tp_rank=1)
    assert runner.piecewise_cuda_graph_runner is None and not warnings


def refused(model, in_order=False, **fields):
    return breakable.refuse(SimpleNamespace(model=model, attn_backend=None, **fields), in_order)


def test_mla_is_refused_unless_its_backend_prepares_the_graph(build_model):
    model = build_model("deepseek_v32")
    assert "MLA" in refused(model, use_mla_backend=True)
    backend = SimpleNamespace(use_captured_forward_metadata_for_breakable_cuda_graph=True)
    assert (
        breakable.refuse(SimpleNamespace(model=model, use_mla_backend=True, attn_backend=backend))
        is None
    )


def test_multimodal_models_are_refused(build_model):
    assert "multimodal" in refused(build_model("llama"), is_multimodal=True)
    assert refused(build_model("llama"), is_multimodal=False) is None


@pytest.mark.parametrize("sees_images", [True, False])
def test_text_of_qwen3_5_is_captured_by_the_overlays_runner(build_model, monkeypatch, sees_images):
    """The release's own (0.5.12, 0.5.13) captures one row of positions, and ids that never come."""
    monkeypatch.setattr(breakable, "BreakableRunner", lambda runner: "the overlay's")
    runner = SimpleNamespace(
        model=build_model("qwen3_5"), is_multimodal=sees_images, attn_backend=None
    )
    assert breakable.make_runner(runner, lambda runner: "the release's") == "the overlay's"
    assert runner.prefill_graph_refusal is None


class Stack:
    layers = [SimpleNamespace(self_attn=SimpleNamespace(attn=None))]

    def __init__(self, forward):
        self.forward = forward


@pytest.mark.parametrize(
    ("forward", "callable_by"),
    [
        (lambda input_ids, positions, forward_batch, inputs_embeds=None: None, {"name", "order"}),
        # as Phi and Persimmon, and as Phi3Small
        (lambda input_ids, forward_batch, positions, inputs_embeds=None: None, {"name"}),
        (lambda input_ids, positions, forward_batch, inputs_embeds: None, {"name"}),
        (lambda positions, hidden_states: None, set()),
    ],
    ids=["in order", "by name", "without a default", "of other names"],
)
def test_a_stack_is_refused_that_a_runner_could_not_call(forward, callable_by):
    model = SimpleNamespace(model=Stack(forward))
    for way in ("name", "order"):
        found = refused(model, in_order=way == "order")
        assert (found is None) is (way in callable_by)
        assert found is None or found.startswith("Stack.forward takes (")


def test_a_list_of_attentions_is_refused():
    class Block:
        self_attn = SimpleNamespace(attn=torch.nn.ModuleList())

    model = SimpleNamespace(model=Stack(lambda input_ids, positions, forward_batch: None))
    model.model.layers = [Block()]
    assert refused(model).startswith("layer 0 (Block): self_attn.attn is a list")


@pytest.mark.revision(">=0.5.12")
def test_the_releases_runner_gets_the_sizes_that_fit(build_model):
    """It would read page ids beyond the context's width."""
    runner = SimpleNamespace(
        model=build_model("llama"),
        attn_backend=None,
        max_total_num_tokens=100,
        model_config=SimpleNamespace(context_len=40),
        server_args=SimpleNamespace(piecewise_cuda_graph_tokens=[16, 32, 64, 128]),
    )
    assert breakable.make_runner(
        runner, lambda made: made.server_args.piecewise_cuda_graph_tokens
    ) == [16, 32]
    runner.model_config.context_len = 8
    assert breakable.make_runner(runner, lambda made: made) is None
    assert "no capture size fits" in runner.prefill_graph_refusal


def test_the_runner_is_the_releases_own_where_it_captures_the_stack_alone(revision):
    """0.5.12's does so too, but replays batches that want hidden states which nobody captured."""
    assert (capture.breakable_runner() is not None) is (revision.micro >= 13)


def arguments(enable_breakable_cuda_graph=True, **changes):
    """Server arguments as typed, after the release's own rules where it has them."""
    return process.by_rules(enable_breakable_cuda_graph=enable_breakable_cuda_graph, **changes)


CONFLICTS = {
    "enable_lora": ({"enable_lora": True}, "lora"),
    "pp_size": ({"pp_size": 2}, "pipeline"),
    "enable_torch_compile": ({"enable_torch_compile": True}, "torch.compile"),
    "context parallelism": ({"attn_cp_size": 2}, "attn-cp-size|attn_cp_size"),
    "the decoding server of a pair": (
        {"disaggregation_mode": "decode"},
        "--disaggregation-mode decode: other servers prefill",
    ),
    "CPU offload": ({"cpu_offload_gb": 4}, "--cpu-offload-gb: what runs between"),
    "symmetric memory": ({"enable_symm_mem": True}, "--enable-symm-mem: what runs between"),
    "EPLB": ({"enable_eplb": True}, "padded rows would count"),
    "recorded experts": ({"expert_distribution_recorder_mode": "stat"}, "padded rows would count"),
    "diffusion": ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
    "the switch that turns the graph off": pytest.param(
        {"disable_piecewise_cuda_graph": True},
        "--disable-piecewise-cuda-graph is given",
        marks=OPT_OUT,
    ),
    "a rule of the release alone": pytest.param(
        {"debug_cuda_graph": True, "enable_hierarchical_cache": True},
        "debug_cuda_graph",
        marks=OWN_RULE,
    ),
}


@pytest.mark.parametrize("changes, named", CONFLICTS.values(), ids=CONFLICTS)
def test_arguments_that_cannot_go_together_are_an_error_that_names_them(changes, named):
    with pytest.raises(
        ValueError, match=f"(?i)--enable-breakable-cuda-graph cannot be honoured: .*{named}"
    ):
        breakable_arguments.check_breakable(arguments(**changes))
    breakable_arguments.check_breakable(arguments(enable_breakable_cuda_graph=False, **changes))


@pytest.mark.revision("<0.5.13")
@pytest.mark.parametrize(
    "changes, named",
    [
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"moe_a2a_backend": "deepep"}, "--moe-a2a-backend"),
    ],
)
def test_enforcing_the_graph_lifts_no_rule_that_it_rests_on(changes, named):
    enforced = process.offered(enforce_piecewise_cuda_graph=True)
    with pytest.raises(ValueError, match=named):
        breakable_arguments.check_breakable(arguments(**changes, **enforced))


TRACED = {  # what the release keeps from its graph because torch.compile cannot trace it
    "HiCache": {"enable_hierarchical_cache": True},
    "deterministic": {"enable_deterministic_inference": True},
    "GGUF by format": {"load_format": "gguf"},
    "GGUF by quantization": {"quantization": "gguf"},
    "GGUF by file": {"model_path": "weights.gguf"},
    "the prefilling server of a pair": {"disaggregation_mode": "prefill"},
}


@OPT_OUT
@pytest.mark.parametrize("changes", TRACED.values(), ids=TRACED)
def test_rules_of_the_compiler_do_not_bind_a_graph_without_it(changes, tmp_path, monkeypatch):
    """They were an error at start; only --enforce-piecewise-cuda-graph lifted them, with others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.gguf").write_bytes(b"GGUF" + bytes(60))
    args = arguments(**changes)
    assert not args.disable_piecewise_cuda_graph and all(
        getattr(args, name) == value for name, value in changes.items()
    )
    breakable_arguments.check_breakable(args)
    assert arguments(
        enable_breakable_cuda_graph=False, **changes
    ).disable_piecewise_cuda_graph  # the piecewise graph stays off


@OPT_OUT
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("model", ["Qwen3_5", "Qwen3_5Moe", "Qwen3VL"])
def test_the_rule_about_multimodal_models_does_not_see_qwen3_5(model, asked):
    """Others still prefill eagerly, and so does the piecewise graph of all."""
    words = dict(architecture=f"{model}ForConditionalGeneration", is_multimodal=True)
    captured = asked and model != "Qwen3VL"
    assert arguments(asked, **words).disable_piecewise_cuda_graph is not captured


@OPT_OUT
def test_a_rule_about_the_model_is_no_error():
    """The report tells it; Qwen3-Next is on such a list."""
    args = arguments()
    args.model_config.is_piecewise_cuda_graph_disabled_model = True
    args._handle_piecewise_cuda_graph()
    breakable_arguments.check_breakable(args)


def test_a_memory_saver_that_pauses_graphs_is_no_error(monkeypatch):
    monkeypatch.setenv("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "true")
    breakable_arguments.check_breakable(arguments(enable_memory_saver=True))


def typed(folder, **changes):
    """ServerArgs of a small Llama as somebody types them, resolved as for a GPU."""
    (folder / "config.json").write_text(json.dumps(KINDS["llama"].values))
    given = dict(model_path=str(folder), device="cuda", skip_tokenizer_init=True)
    given |= dict(enable_breakable_cuda_graph=True, mem_fraction_static=0.5)
    return server_args.ServerArgs(**given | changes)


@pytest.mark.parametrize(
    "changes, named",
    [
        pytest.param(dict(enable_lora=True, lora_paths=[]), "--enable-lora", id="typed"),
        pytest.param(
            dict(enable_dp_attention=True, tp_size=2, dp_size=2),
            "enable.dp.attention",
            id="0.5.13: by a rule of the release",
            marks=OPT_OUT,
        ),
    ],
)
def test_arguments_are_checked_at_start(changes, named, tmp_path):
    """By ServerArgs itself, before anything is loaded, behind the release's own rules."""
    with pytest.raises(
        ValueError, match=f"--enable-breakable-cuda-graph cannot be honoured: .*{named}"
    ):
        typed(tmp_path, **changes)


@OPT_OUT
@pytest.mark.parametrize("asked", [True, False], ids=["breakable", "piecewise"])
def test_a_server_with_hicache_starts_with_the_graph_that_can_be_captured(asked, tmp_path):
    """Memory is divided for it, too: ServerArgs as it is typed, resolved as for a GPU."""
    changes = dict(enable_breakable_cuda_graph=asked, enable_hierarchical_cache=True)
    args = typed(tmp_path, attention_backend="triton", **changes)
    assert args.disable_piecewise_cuda_graph is not asked
    assert args.enable_hierarchical_cache
    assert args.load_format == "auto"


@OWN_FLAG
def test_the_flag_is_spelled_as_in_later_releases():
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    assert parser.parse_args(
        ["--model-path", "x", "--enable-breakable-cuda-graph"]
    ).enable_breakable_cuda_graph
    args = arguments()
    breakable_arguments.check_breakable(args)
    # where the graph must be asked for, this asks
    assert getattr(args, "enable_piecewise_cuda_graph", True)
