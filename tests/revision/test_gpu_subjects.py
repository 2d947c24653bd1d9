"""The configs that the bench and the gain time, as the releases read them."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import models
import subjects

# Of one request: the states' shape, and in how many layers.
STATES = {
    "nemotron": ((128, 80, 128), 27),
    "nemotron-3-nano": ((64, 64, 128), 23),
    "qwen3-next": ((32, 128, 128), 9),
    "qwen3.5": ((48, 128, 128), 12),
}


@pytest.mark.revision(">=0.5.9")
@pytest.mark.parametrize("name", STATES)
def test_the_release_reads_a_subject_with_its_published_states(name, tmp_path):
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = subjects.SUBJECTS[name].config
    read = get_config(str(models.write_config(tmp_path, config)), trust_remote_code=False)
    read, config = getattr(read, "text_config", read), config.get("text_config", config)
    assert (
        type(read).__module__.startswith("sglang.srt.configs.")
        and read.num_hidden_layers == config["num_hidden_layers"]
    )
    shape, layers = STATES[name]
    mamba = read.mamba_layer_ids if name.startswith("nemotron") else read.linear_layer_ids
    assert len(mamba) == layers
    if name.startswith("nemotron"):
        assert (read.mamba_num_heads, read.mamba_head_dim, read.ssm_state_size) == shape
    else:
        assert (
            read.linear_num_value_heads,
            read.linear_value_head_dim,
            read.linear_key_head_dim,
        ) == shape
