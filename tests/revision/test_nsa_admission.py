"""Which models with sparse attention the piecewise graph is open to, and what is said otherwise."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import late, logged, models, process
from host.runner import NativeSparseAttnBackend

with late.modules():
    from sglang.srt.prefill_graph.breakable import runner as set_up
    from sglang.srt.prefill_graph.compat import arguments, features
    from sglang.srt.prefill_graph.piecewise import admission, nsa, sparse
    from sglang.srt.prefill_graph.report import verdict as report_verdict

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.13")
# earlier the graph must be asked for, and no model is kept from it
LISTED = pytest.mark.revision(">=0.5.10")

CONFIGS = models.read("unbuilt")
SPARSE = ("DeepSeek-V3.2", "GLM-5")
ASKED = {"enable_piecewise_cuda_graph": True}  # where the graph must be asked for
FlashInferMLAAttnBackend = type("FlashInferMLAAttnBackend", (), {})  # another backend's name


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(features, "on_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


@LISTED
@pytest.mark.parametrize(
    "name, on",
    [
        *((name, True) for name in (*SPARSE, "DeepSeek-V3", "Kimi-K2", "GptOss")),
        ("Qwen3-Next", False),
    ],
)
def test_sparse_attention_is_let_in_and_nobody_else_is_touched(hopper, resolve, name, on):
    args = resolve(CONFIGS[name])
    assert args.disable_piecewise_cuda_graph is not on
    assert features.has_sparse_attention(args.get_model_config()) is (name in SPARSE)


@LISTED
@pytest.mark.parametrize("name", SPARSE)
def test_anything_unproven_stays_eager_and_the_report_says_why(hopper, resolve, name):
    """As typed: while the release resolves its arguments, it changes some."""
    typed = dict(prefill_attention_backend="flashinfer", decode_attention_backend="nsa")
    args = resolve(CONFIGS[name], **typed)
    assert args.disable_piecewise_cuda_graph
    verdict = report_verdict.explain(
        SimpleNamespace(server_args=args, model_config=args.get_model_config())
    )
    assert verdict.verdict == "off"
    assert "--prefill-attention-backend is flashinfer" in verdict.reason
    assert "the release keeps such models" in verdict.reason


def arguments_with(**options):
    given = dict(piecewise_cuda_graph_compiler="eager", attention_backend="nsa")
    given |= dict(piecewise_cuda_graph_tokens=[64, 1024])
    return SimpleNamespace(**given | options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"attention_backend": None}, None),
        ({"attention_backend": "flashinfer"}, "--attention-backend is flashinfer"),
        ({"prefill_attention_backend": "flashinfer"}, "--prefill-attention-backend is flashinfer"),
        ({"decode_attention_backend": "fa3"}, "--decode-attention-backend is fa3"),
        ({"piecewise_cuda_graph_compiler": "inductor"}, "--piecewise-cuda-graph-compiler is"),
        ({"enable_nsa_prefill_context_parallel": True}, "--enable-nsa-prefill-context-parallel is"),
        ({"enable_prefill_context_parallel": True}, "--enable-prefill-context-parallel is given"),
        ({"attn_cp_size": 2}, "--attention-context-parallel-size is 2"),
        ({"enable_hisparse": True}, "--enable-hisparse is given"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap is given"),
        ({"enable_dp_attention": True}, "--enable-dp-attention is given"),
        ({"enable_lora": True}, "--enable-lora is given"),
        ({"nsa_prefill_backend": "trtllm"}, "--nsa-prefill-backend is trtllm"),
        ({"nsa_decode_backend": "trtllm"}, "--nsa-decode-backend is trtllm"),
        ({"speculative_algorithm": "EAGLE"}, None),
        ({"enable_mixed_chunk": True}, None),
        (ASKED | {"speculative_algorithm": "EAGLE"}, "--speculative-algorithm is given"),
        (ASKED | {"enable_mixed_chunk": True}, "--enable-mixed-chunk is given"),
    ],
    ids=str,
)
def test_what_is_against_it_one_by_one(monkeypatch, options, said):
    monkeypatch.setattr(features, "on_cuda", lambda: True)
    found = sparse.against_sparse(arguments_with(**options))
    assert len(found) == bool(said) and all(one.startswith(said) for one in found)


def test_another_gpu_is_against_it(monkeypatch):
    monkeypatch.setattr(features, "on_cuda", lambda: False)
    assert sparse.against_sparse(arguments_with()) == ["it needs an NVIDIA GPU"]


@pytest.fixture
def runner(build_model, monkeypatch):
    """runner(**changes): what the set-up asks of a ModelRunner with a small DeepSeek-V3.2."""
    monkeypatch.setattr(features, "on_cuda", lambda: True)
    model = build_model("deepseek_v32")

    def make(**changes):
        config = SimpleNamespace(hf_text_config=model.config, context_len=1024)
        given = dict(
            model=model,
            model_config=config,
            server_args=arguments_with(),
            attn_backend=NativeSparseAttnBackend(),
            tp_rank=0,
            attention_layers=[],
            max_total_num_tokens=4096,
        )
        return SimpleNamespace(**given | changes)

    return make


def admit(runner, caplog):
    """Whether the set-up goes on with the piecewise graph, and what it warned of."""
    by_default = arguments.has_default_sizes(runner.server_args)
    with caplog.at_level(logging.INFO):
        admitted = admission.admits(runner) and set_up._admits_sparse(runner, by_default)
    return admitted, logged.warnings(caplog)


def test_indexers_are_found_under_the_attention_that_the_context_lists(runner, build_model, caplog):
    """Those of a draft do not replace the target's, though both number their layers from 0."""
    given, draft = runner(), runner(model=build_model("deepseek_v32", num_hidden_layers=2))
    assert admit(given, caplog) == admit(draft, caplog) == (True, [])
    for layer in given.model.model.layers:
        assert nsa._indexers[layer.self_attn.attn_mqa] is layer.self_attn.indexer
        assert layer.self_attn.attn_mha.kv_b_proj is layer.self_attn.kv_b_proj, (
            "the traced forward would have to set it"
        )


@pytest.mark.parametrize("largest, end", [(2048, 512), (256, 256)])
def test_default_sizes_end_where_eager_prefill_is_as_fast(runner, caplog, largest, end):
    """DeepSeek-V3.2 took 3 % longer in the graph at 4096 tokens, and 2 ms longer at 1024. The
    context of this server has 1024 tokens."""
    args = process.with_default_sizes(largest)
    before = list(args.piecewise_cuda_graph_tokens)
    assert admit(runner(server_args=args), caplog) == (True, [])
    assert args.piecewise_cuda_graph_tokens == [size for size in before if size <= end]
    assert args.piecewise_cuda_graph_tokens[-1] == end and before[-1] == largest
    assert ("up to 1024 tokens those beyond 512" in caplog.text) is (largest > end)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"attn_backend": FlashInferMLAAttnBackend()},
            "attention runs on FlashInferMLAAttnBackend, which keeps nothing for the indexer",
        ),
        (
            {"server_args": arguments_with(piecewise_cuda_graph_compiler="inductor")},
            "--piecewise-cuda-graph-compiler is inductor",
        ),
    ],
    ids=["another backend", "inductor"],
)
def test_a_graph_that_was_enforced_is_refused_with_one_warning(runner, caplog, changes, said):
    """--enforce-piecewise-cuda-graph skips the rules about arguments; 0.5.9 has none."""
    given = runner(**changes)
    admitted, warnings = admit(given, caplog)
    assert not admitted and len(warnings) == 1
    assert said in warnings[0] and said in given.prefill_graph_refusal


def test_models_without_sparse_attention_decide_for_themselves(runner, build_model, caplog):
    other = build_model("llama")
    plain = runner(
        model=other,
        model_config=SimpleNamespace(hf_text_config=other.config, context_len=1024),
        attn_backend=FlashInferMLAAttnBackend(),
    )
    assert admit(plain, caplog) == (True, [])
