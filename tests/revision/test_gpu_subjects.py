"""The configs that the bench and the gain time, as the releases read them."""

import importlib

import pytest
import subjects
from host import checkpoints, process
from host import models as host_models

# Of one request: the states' shape, and in how many layers.
STATES = {
    "nemotron": ((128, 80, 128), 27),
    "nemotron-3-nano": ((64, 64, 128), 23),
    "qwen3-next": ((32, 128, 128), 9),
    "qwen3-next-32": ((32, 128, 128), 24),
    "qwen3.5": ((48, 128, 128), 12),
    "qwen3.5-moe": ((32, 128, 128), 30),
}


@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize("name", STATES)
def test_the_release_reads_a_subject_with_its_published_states(name, tmp_path):
    config = subjects.SUBJECTS[name].config
    read = checkpoints.read(tmp_path, config)
    read, config = getattr(read, "text_config", read), config.get("text_config", config)
    assert type(read).__module__.startswith("sglang.srt.configs.")
    assert read.num_hidden_layers == config["num_hidden_layers"]
    shape, layers = STATES[name]
    mamba = read.mamba_layer_ids if name.startswith("nemotron") else read.linear_layer_ids
    assert len(mamba) == layers
    heads = "mamba_num_heads", "mamba_head_dim", "ssm_state_size"
    nets = "linear_num_value_heads", "linear_value_head_dim", "linear_key_head_dim"
    sizes = heads if name.startswith("nemotron") else nets
    assert tuple(getattr(read, size) for size in sizes) == shape


@pytest.mark.revision(">=0.5.10")
@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe"])
def test_the_releases_class_has_a_subjects_weights(name, tmp_path):
    subject = subjects.SUBJECTS[name]
    read = checkpoints.read(tmp_path, subject.config)
    module = importlib.import_module("sglang.srt.models.qwen3_5")
    built = host_models.construct(getattr(module, subject.config["architectures"][0]), read)
    gib = sum(weight.numel() * weight.element_size() for weight in built.parameters()) / 2**30
    assert abs(gib / subject.weights - 1) < 0.03, gib


@pytest.mark.revision(">=0.5.16")
def test_the_release_has_every_argument_of_the_subjects():
    """tests/gpu/engine.py starts a server without those that its release lacks."""
    words = {word for subject in subjects.SUBJECTS.values() for word in subject.engine}
    assert words <= process.known()
