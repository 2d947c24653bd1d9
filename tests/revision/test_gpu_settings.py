"""The servers that tests/gpu/settings.py starts, in the releases' own words."""

import importlib
import importlib.util
import inspect
import json
from pathlib import Path

import models
import modes
import pytest
import settings
import test_prefill_counts as counts
from host import checkpoints, late, process

with late.modules():
    from sglang.srt import prefill_graph
    from sglang.srt.entrypoints import engine
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.compat import eager
    from sglang.srt.utils import hf_transformers_utils


TWO_GPUS = {"tp_size": 2} | settings.TENSOR_PARALLEL
SINGLE = [name for name, setting in settings.SETTINGS.items() if setting.gpus == 1]


@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize(
    "name",
    [*SINGLE, "two GPUs", pytest.param("dp-attention", marks=pytest.mark.revision(">=0.5.14"))],
)
def test_the_release_takes_a_settings_arguments(name, tmp_path):
    """What it does not know is left out, as engine.py does."""
    words = TWO_GPUS if name == "two GPUs" else settings.SETTINGS[name].words
    folder = models.write_config(tmp_path, models.MODELS["llama"])
    args = process.default_server_args(str(folder), **process.offered(**words))
    known = words if name != "two GPUs" else {"tp_size": 2, "dp_size": 1}
    assert {word: getattr(args, word) for word in known} == known


@pytest.mark.patch("breakable/pause-with-memory-saver", "breakable/run-on-older-releases")
@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize("mode", [modes.BREAKABLE, modes.PIECEWISE])
def test_every_setting_runs_in_the_releases_modes(mode):
    """But for a piecewise graph where there is none any more."""
    fields = process.known()
    for name in ("context-flag", "context-config", "returns", "mixed-chunk"):
        setting = settings.SETTINGS[name]
        why = settings.unavailable(setting, setting.models[0], mode, fields)
        gone = mode == modes.PIECEWISE and not fields & {
            "cuda_graph_tc_compiler",
            "piecewise_cuda_graph_compiler",
        }
        assert bool(why) is gone, why


@pytest.mark.revision(">=0.5.9")
def test_answers_are_asked_for_in_the_releases_words():
    words = inspect.signature(engine.Engine.generate).parameters
    assert settings.RETURNS.keys() <= words.keys()
    assert forward_batch_info.ForwardMode.MIXED.name == "MIXED"


@pytest.mark.revision(">=0.5.12")
def test_no_kernel_that_may_use_multicast_is_chosen():
    """Releases choose it for Qwen3-Next on several GPUs; before 0.5.12 they do not."""
    assert settings.TENSOR_PARALLEL.keys() <= process.known()
    assert settings.SETTINGS["dp-attention"].words.items() >= settings.TENSOR_PARALLEL.items()


@pytest.mark.revision(">=0.5.9")
def test_a_short_context_is_read_from_the_arguments(tmp_path):
    """As ModelConfig does with --json-model-override-args."""
    setting = settings.SETTINGS["context-config"]
    checkpoints.read(tmp_path, models.MODELS[setting.models[0]])
    given = json.loads(setting.words["json_model_override_args"])
    words = dict(trust_remote_code=False, model_override_args=given)
    read = hf_transformers_utils.get_config(str(tmp_path), **words)
    assert hf_transformers_utils.get_context_length(read) == settings.cases.SHORT_CONTEXT


@pytest.mark.revision(">=0.5.9")
def test_a_router_whose_experts_are_returned_knows_its_layer(build_model):
    """NemotronH's does not: the server would die, or write another layer's."""
    [name] = settings.SETTINGS["returns"].models
    model = build_model("qwen3_next", **models.MODELS[name] | {"vocab_size": 256})
    routers = [layer.mlp.topk for layer in model.model.layers]
    assert [router.layer_id for router in routers] == list(range(8))


@pytest.mark.revision(">=0.5.13,<0.5.17")
def test_what_a_control_leaves_out_is_what_the_patch_calls():
    """Looked up when it is called: an engine's hook replaces the module's name."""
    module, _, function = settings.FORGOTTEN["track-under-graph"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    runners = Path(prefill_graph.__file__).parents[1] / "model_executor"
    calling = [
        file for file in runners.rglob("*.py") if "tracked_states.follow(" in file.read_text()
    ]
    assert calling


WATCH = Path(__file__).parents[1] / "gpu/watch/sitecustomize.py"


@pytest.mark.revision(">=0.5.9,<0.5.17")
def test_a_refused_prefill_has_the_runners_own_reason(monkeypatch):
    """Every runner that the release has refuses a batch that is longer than its largest graph. The
    queue's report says so too, though the runner's method is another one then."""
    spec = importlib.util.spec_from_file_location("watch", WATCH)
    watch = importlib.util.module_from_spec(spec)
    monkeypatch.delenv("PREFILL_WATCH", raising=False)
    spec.loader.exec_module(watch)
    batch, seen = counts.batch_of(600), {}
    for module, name in watch.RUNNERS.items():
        if not late.has(module):
            continue
        runner = counts.captured(module, name)
        for method in ("can_run", "can_run_graph"):
            if method in vars(type(runner)):
                noting = watch.noting_refusals(vars(type(runner))[method])
                monkeypatch.setattr(type(runner), method, noting)
                assert not getattr(runner, method)(batch)
                seen[name] = watch.state["why"]
                assert eager.OTHER not in eager._why(None, runner, batch)
    assert seen
    for name, why in seen.items():
        assert "the largest size, 128" in why or "max_num_tokens" in why, (name, why)
