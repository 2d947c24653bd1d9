"""The checkpoints that tests/gpu makes, against the release's own classes: what is left unfilled is
whatever memory held."""

import asleep
import launch
import models
import pytest
import torch
from host import checkpoints, late

with late.modules():
    from sglang.srt import environ, server_args
    from sglang.srt.entrypoints import engine
    from sglang.srt.managers import io_struct

KINDS = {
    "nemotron-h": "nemotron_h",
    "nemotron-h-buffer": "nemotron_h",
    "nemotron-h-mtp": "nemotron_h",
    "nemotron-h-moe": "nemotron_h",
    "qwen3-next": "qwen3_next",
    "qwen3-next-triton": "qwen3_next",
    "qwen3-next-buffer": "qwen3_next",
    "llama": "llama",
    "deepseek-v32": "deepseek_v32",
    "deepseek-v32-fp8": "deepseek_v32",
    "glm-5": "glm_moe_dsa",
    "falcon-h1": "falcon_h1",
    "kimi-linear": "kimi_linear",
}
SMALLER = dict(vocab_size=256)  # the vocabulary is most of the time that drawing takes
WRITTEN = (
    "head_dim",
    "mamba_d_ssm",
    "mamba_n_groups",
    "mamba_rms_norm",
    "mlp_multipliers",
    "num_hidden_layers",
    "ssm_multipliers",
    "vocab_size",
)

# 0.5.5 has no experts in NemotronH
MARKS = {
    "nemotron-h-moe": pytest.mark.revision(">=0.5.6"),
    "glm-5": pytest.mark.revision(">=0.5.9"),
    "nemotron-h-mtp": pytest.mark.revision(">=0.5.13"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in models.MODELS]
)
def test_a_checkpoint_fills_every_parameter(build_model, name, monkeypatch):
    config = models.MODELS[name] | SMALLER
    # Kimi's model makes a second stream when it is built
    monkeypatch.setattr(torch.cuda, "Stream", torch.cpu.Stream)
    # without a GPU the releases build no rope without scaling; it has no parameters
    if name == "glm-5":
        config |= {"rope_scaling": models.MODELS["deepseek-v32"]["rope_scaling"]}
    model = build_model(KINDS[name], device="cpu", **config)
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
    draft = build_model("nemotron_h_mtp", device="cpu", **config)
    of_target = [name for name, _ in draft.named_parameters()]
    of_target = tuple(n for n in of_target if "embed" in n or n.startswith("lm_head."))
    left, _, held = checkpoints.fill(draft, tensors := checkpoints.drawn(config), of_target)
    assert left == []
    of_draft = [tensor for name, tensor in tensors.items() if name.startswith("mtp.")]
    assert sum(map(torch.Tensor.numel, of_draft)) == held


def known():
    """The fields of the release's server arguments."""
    kinds = server_args.ServerArgs.__mro__
    return {field for kind in kinds for field in vars(kind).get("__annotations__", {})}


@pytest.mark.revision(">=0.5.13")
@pytest.mark.parametrize("name", ["nemotron-h-buffer", "nemotron-h-mtp"])
def test_the_release_knows_what_a_server_of_the_model_is_asked_for(name):
    """engine.py leaves out what it does not know. One of the two names of the cache's strategy is
    its own."""
    words = (
        {"speculative_draft_model_path", *models.engine(name)}
        if models.has_drafts(name)
        else {*models.engine(name)}
    )
    assert len(words & {*models.EXTRA_BUFFER} & known()) == 1
    assert words - {*models.EXTRA_BUFFER} <= known()


@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize("name", ["deepseek-v32", "deepseek-v32-fp8"])
@pytest.mark.parametrize("names", models.SPARSE_KERNELS)
def test_the_release_knows_which_kernels_sparse_attention_is_asked_for(names, name):
    """0.5.13 has other names. Under the old ones, which engine.py leaves out, it decoded with
    FlashAttention 3."""
    assert len({*names} & known()) == 1
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
    assert type(read).__module__ == "sglang.srt.configs.falcon_h1" and read.architectures == [
        "FalconH1ForCausalLM"
    ]
    assert {name: getattr(read, name) for name in WRITTEN} == {
        name: models.MODELS["falcon-h1"][name] for name in WRITTEN
    }
    assert read.rope_parameters["rope_theta"] == models.MODELS["falcon-h1"]["rope_theta"]


def test_the_sleeping_engine_is_asked_in_the_releases_words(default_server_args):
    """tests/gpu/asleep.py."""
    assert default_server_args(**asleep.WORDS).enable_memory_saver
    assert io_struct.UpdateWeightFromDiskReqInput(
        model_path="other", recapture_cuda_graph=True
    ).recapture_cuda_graph
    assert {
        "update_weights_from_tensor",
        "release_memory_occupation",
        "resume_memory_occupation",
    } <= vars(engine.Engine).keys()
