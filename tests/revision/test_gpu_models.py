"""The checkpoints that tests/gpu makes, against the release's own classes: what is left unfilled is whatever memory held."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import models  # noqa: E402

KINDS = {
    "nemotron-h": "nemotron_h", "nemotron-h-moe": "nemotron_h", "qwen3-next": "qwen3_next", "llama": "llama", "deepseek-v32": "deepseek_v32",
    "deepseek-v32-fp8": "deepseek_v32", "glm-5": "glm_moe_dsa",
}  # fmt: skip
SMALLER = dict(vocab_size=256)  # the vocabulary is most of the time that drawing takes


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
    assert [name for name, parameter in parameters.items() if parameter.isnan().any()] == []
    assert sum(map(torch.Tensor.numel, tensors.values())) == sum(map(torch.Tensor.numel, parameters.values()))
