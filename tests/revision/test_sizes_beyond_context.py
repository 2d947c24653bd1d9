"""Capture sizes that a server with a short context gets: none for which the context has no room."""

import pytest
from host import late, logged, prefill, process
from host import runner as host_runner
from host.models import KINDS
from packaging.version import Version

with late.modules():
    from sglang.srt.configs import model_config
    from sglang.srt.prefill_graph.piecewise import admission

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.17")
UP_TO_13 = pytest.mark.revision("<0.5.14")
CONTEXT = 2048


def served(resolve, flag):
    """The release's sizes and context for a llama, from --context-length or from config.json."""
    asked = process.offered(enable_piecewise_cuda_graph=True)
    if flag:
        asked["context_length"] = CONTEXT
    args = resolve(
        KINDS["llama"].values | {"max_position_embeddings": 65536 if flag else CONTEXT},
        skip_tokenizer_init=True,
        mem_fraction_static=0.5,
        chunked_prefill_size=8192,
        **asked,
    )
    later = getattr(args, "cuda_graph_config", None)
    sizes = later.prefill.bs if later else args.piecewise_cuda_graph_tokens
    return list(sizes), model_config.ModelConfig.from_server_args(args).context_len


def captured(build_model, caplog, revision, sizes, context, rank=0):
    """What the release's own set-up captures for these, or None, and what it warned of."""
    caplog.clear()
    model, limits = build_model("llama"), dict(context_len=context, tp_rank=rank)
    if revision < Version("0.5.14"):
        runner = host_runner.decide(model, piecewise_cuda_graph_tokens=sizes, **limits)
        made = runner.piecewise_cuda_graph_runner
    else:
        made = prefill.capture(model, layers=4, sizes=sizes, requests=1, **limits)
    return made and made.capture_num_tokens, logged.warnings(caplog, "CUDA graph")


@pytest.mark.parametrize("flag", [True, False], ids=["--context-length", "config.json"])
def test_no_size_is_larger_than_the_context(resolve, build_model, caplog, revision, flag):
    """Up to 8192 were captured, of one request that req_to_token has 2048 places for."""
    sizes, context = served(resolve, flag)
    assert context == CONTEXT
    made, warned = captured(build_model, caplog, revision, sizes, context)
    assert made == sorted(size for size in sizes if size <= CONTEXT)
    assert made[-1] == CONTEXT
    assert not warned


def test_where_no_size_fits_one_warning_says_why(build_model, caplog, revision):
    """From the first rank."""
    made, [warning] = captured(build_model, caplog, revision, [64, 128], 32)
    assert made is None and "no c" in warning and "size fits" in warning and "128" in warning
    assert captured(build_model, caplog, revision, [64, 128], 32, rank=1) == (None, [])


@UP_TO_13
def test_the_cache_has_room_for_every_size(build_model):
    runner = host_runner.decide(build_model("llama"))
    runner.max_total_num_tokens = 100
    assert admission.admits(runner) and runner.server_args.piecewise_cuda_graph_tokens == [64]
