"""The checkpoints that tests/gpu makes, against the release's own classes: what is left unfilled is
whatever memory held."""

import importlib

import asleep
import images
import launch
import models
import pytest
import subjects
import torch
from host import checkpoints, late, process
from host import models as host_models

with late.modules():
    from sglang.srt import environ
    from sglang.srt.entrypoints import engine
    from sglang.srt.managers import io_struct

SMALLER = dict(vocab_size=256)  # the vocabulary is most of the memory
SIZES = "head_dim", "mamba_d_ssm", "mamba_n_groups", "num_hidden_layers", "vocab_size"
FACTORS = "mamba_rms_norm", "mlp_multipliers", "ssm_multipliers"

# 0.5.5 has no experts in NemotronH
MARKS = {
    "nemotron-h-moe": pytest.mark.revision(">=0.5.6"),
    "glm-5": pytest.mark.revision(">=0.5.9"),
    "nemotron-h-mtp": pytest.mark.revision(">=0.5.13"),
    "qwen3-5": pytest.mark.skip("test_gpu_images.py fills it"),
}


# test_gpu_images.py fills the one that takes images
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=MARKS.get(name, ()))
        for name in models.MODELS
        if name != images.MODEL
    ],
)
def test_a_checkpoint_fills_every_parameter(build_model, name, monkeypatch):
    config = models.MODELS[name] | SMALLER
    [architecture] = config["architectures"]
    kinds = host_models.KINDS.items()
    kind = next(name for name, one in kinds if one.model_class.endswith(f".{architecture}"))
    # Kimi's model makes a second stream when it is built
    monkeypatch.setattr(torch.cuda, "Stream", torch.cpu.Stream)
    # without a GPU the releases build no rope without scaling; it has no parameters
    if name == "glm-5":
        config |= {"rope_scaling": models.MODELS["deepseek-v32"]["rope_scaling"]}
    model = build_model(kind, device="cpu", seed=None, **config)
    # its layers make norms that they never call, and published checkpoints do not have
    unused = ("q_norm.weight", "k_norm.weight") if name == "falcon-h1" else ()
    left, _, held = checkpoints.fill(model, tensors := checkpoints.drawn(config), unused)
    assert left == []
    of_target = [tensor for name, tensor in tensors.items() if not name.startswith("mtp.")]
    assert sum(map(torch.Tensor.numel, of_target)) == held


@pytest.mark.revision(">=0.5.13")
def test_a_checkpoint_fills_the_layer_that_drafts(build_model):
    """Embeddings and head, which no tensor is for, are the target's."""
    config = models.MODELS["nemotron-h-mtp"] | SMALLER
    draft = build_model("nemotron_h_mtp", device="cpu", seed=None, **config)
    of_target = [name for name, _ in draft.named_parameters()]
    of_target = tuple(n for n in of_target if "embed" in n or n.startswith("lm_head."))
    left, _, held = checkpoints.fill(draft, tensors := checkpoints.drawn(config), of_target)
    assert left == []
    of_draft = [tensor for name, tensor in tensors.items() if name.startswith("mtp.")]
    assert sum(map(torch.Tensor.numel, of_draft)) == held


@pytest.mark.revision(">=0.5.13")
@pytest.mark.parametrize("name", ["nemotron-h-buffer", "nemotron-h-mtp"])
def test_the_release_knows_what_a_server_of_the_model_is_asked_for(name):
    """engine.py leaves out what it does not know. The cache's strategy has two names."""
    draft = {"speculative_draft_model_path"} if models.has_drafts(name) else set()
    words = {*models.engine(name)} | draft
    strategy = {*models.engine("nemotron-h-buffer")}
    assert len(words & strategy & process.known()) == 1
    assert words - strategy <= process.known()


@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize("name", ["deepseek-v32", "deepseek-v32-fp8"])
@pytest.mark.parametrize("of", ["prefill", "decode"])
def test_the_release_knows_which_kernels_sparse_attention_is_asked_for(of, name):
    """0.5.13 has other names: under the old ones, left out, it decoded with FlashAttention 3."""
    names = [f"{indexer}_{of}_backend" for indexer in ("nsa", "dsa")]
    assert len({*names} & process.known()) == 1
    assert len({models.engine(name)[one] for one in names}) == 1


@pytest.mark.revision(">=0.5.10")
def test_sparse_attention_is_asked_for_in_short_prompts_too(monkeypatch):
    """A server that finds no limit of the dense branch sets one by itself, of 2048 tokens. 0.5.13
    does not look for the old name there (server_args.py)."""
    envs = environ.envs
    for name, value in launch.SETTINGS.items():
        monkeypatch.setenv(name, value)
    names = [f"SGLANG_{kind}_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD" for kind in ("DSA", "NSA")]
    limit = next(getattr(envs, name) for name in names if hasattr(envs, name))
    assert limit.is_set()
    assert limit.get() == 0


@pytest.mark.revision(">=0.5.15")
def test_the_release_reads_falcon_h1_as_its_own_kind(build_model, tmp_path):
    """As an engine reads config.json: what this gives is what the class above is made from."""
    read = checkpoints.read(tmp_path, models.MODELS["falcon-h1"])
    assert type(read).__module__ == "sglang.srt.configs.falcon_h1"
    assert read.architectures == ["FalconH1ForCausalLM"]
    for name in SIZES + FACTORS:
        assert getattr(read, name) == models.MODELS["falcon-h1"][name]
    assert read.rope_parameters["rope_theta"] == models.MODELS["falcon-h1"]["rope_theta"]


def test_the_sleeping_engine_is_asked_in_the_releases_words():
    """tests/gpu/asleep.py."""
    assert process.default_server_args(**asleep.WORDS).enable_memory_saver
    assert io_struct.UpdateWeightFromDiskReqInput(
        model_path="other", recapture_cuda_graph=True
    ).recapture_cuda_graph
    assert {
        "update_weights_from_tensor",
        "release_memory_occupation",
        "resume_memory_occupation",
    } <= vars(engine.Engine).keys()


# --- the configs that the bench and the gain time

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
