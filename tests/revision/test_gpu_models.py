"""The checkpoints that tests/gpu makes, against the release's own classes: what is left unfilled is whatever memory held."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import models  # noqa: E402

KINDS = {
    "nemotron-h": "nemotron_h", "nemotron-h-moe": "nemotron_h", "qwen3-next": "qwen3_next", "llama": "llama", "deepseek-v32": "deepseek_v32",
    "deepseek-v32-fp8": "deepseek_v32", "glm-5": "glm_moe_dsa", "falcon-h1": "falcon_h1",
}  # fmt: skip
SMALLER = dict(vocab_size=256)  # the vocabulary is most of the time that drawing takes
WRITTEN = ("head_dim", "mamba_d_ssm", "mamba_n_groups", "mamba_rms_norm", "mlp_multipliers", "num_hidden_layers", "ssm_multipliers", "vocab_size")

MARKS = {"nemotron-h-moe": pytest.mark.revision(">=0.5.6"), "glm-5": pytest.mark.revision(">=0.5.9")}  # 0.5.5 has no experts in NemotronH


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in models.MODELS])
def test_a_checkpoint_fills_every_parameter(build_model, name):
    config = models.MODELS[name] | SMALLER
    if name == "glm-5":  # without a GPU the releases build no rope without scaling; it has no parameters
        config |= {"rope_scaling": models.DEEPSEEK_V32["rope_scaling"]}
    model = build_model(KINDS[name], device="cpu", **config)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    tensors = {name: models.draw(name, shape, kind) for name, shape, kind in models.shapes(config)}
    model.load_weights(iter(tensors.items()))
    if name == "falcon-h1":  # its layers make norms that they never call, and published checkpoints do not have
        parameters = {name: parameter for name, parameter in parameters.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))}
    assert [name for name, parameter in parameters.items() if parameter.isnan().any()] == []
    assert sum(map(torch.Tensor.numel, tensors.values())) == sum(map(torch.Tensor.numel, parameters.values()))


@pytest.mark.revision(">=0.5.15")
def test_the_release_reads_falcon_h1_as_its_own_kind(build_model, tmp_path):
    """As an engine reads config.json: what this gives is what the class above is made from."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    read = get_config(str(models.write_config(tmp_path, models.MODELS["falcon-h1"])), trust_remote_code=False)
    assert type(read).__module__ == "sglang.srt.configs.falcon_h1" and read.architectures == ["FalconH1ForCausalLM"]
    assert {name: getattr(read, name) for name in WRITTEN} == {name: models.FALCON_H1[name] for name in WRITTEN}
    assert read.rope_parameters["rope_theta"] == models.FALCON_H1["rope_theta"]


def test_the_sums_in_float64_are_the_published_model(tmp_path, monkeypatch):
    """Held against transformers', which is right within one chunk and without its least time step."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "NemotronHForCausalLM"):
        pytest.skip("this transformers has no NemotronH")
    import nemotron_sums

    config = models.nemotron_h("M-*M", 64, 96, (4, 2), (8, 16), 256, head_dim=16, attention_head_dim=16, n_groups=4, mamba_n_groups=4, ssm_state_size=16, use_mamba_kernels=False)
    models.write(tmp_path, config)
    read, weights = nemotron_sums.read(tmp_path, "cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for module in theirs.modules():
        if hasattr(module, "time_step_min"):
            module.time_step_min = 0.0
    ids = torch.randint(10, 256, (100,), generator=torch.Generator().manual_seed(5))
    mine = nemotron_sums.log_probabilities(read, weights, ids)
    with torch.no_grad():
        logits = theirs(ids[None], use_cache=False).logits[0]
    assert (torch.log_softmax(logits.double(), -1) - mine).abs().max() < 1e-4
    passes = {"cold": {"single": {"answers": [{"tokens": [7, 9], "logprobs": [0.0, 0.0]}]}}}
    off = nemotron_sums.distance(read, weights, passes, {"single": [tuple(ids[:5].tolist())]}, "cpu")
    rows = nemotron_sums.log_probabilities(read, weights, torch.tensor([*ids[:5], 7]))
    wanted = [-rows[4, 7].item(), -rows[5, 9].item()]
    assert off == {"mean": pytest.approx(sum(wanted) / 2), "worst": pytest.approx(max(wanted), abs=1e-4), "tokens": 2}
