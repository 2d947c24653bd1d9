"""tests/gpu/nemotron_sums.py beside transformers' NemotronH: in a process where sglang has changed
nothing of it."""

import sys
import tempfile
from pathlib import Path

import torch
import transformers
from host import interpreted

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "gpu"))
import models
import nemotron_sums

TOKENS = 100  # of one chunk: across chunks, transformers' own sums are others


def _knows_mlps():
    """Not before 5.6: 0.5.10.post1's transformers 5.3 refuses the published dense models'
    pattern."""
    try:
        return bool(transformers.NemotronHConfig._pattern_to_list("-"))
    except KeyError:
        return False


def compare():
    """None where transformers has no NemotronH with all its kinds of layers."""
    if not hasattr(transformers, "NemotronHForCausalLM") or not _knows_mlps():
        return None
    small = dict(
        head_dim=16, attention_head_dim=16, n_groups=4, mamba_n_groups=4, ssm_state_size=16
    )
    config = models.nemotron_h(
        "M-*M", 64, 96, (4, 2), (8, 16), 256, use_mamba_kernels=False, **small
    )
    with tempfile.TemporaryDirectory() as folder:
        models.write(Path(folder), config)
        read, weights = nemotron_sums.read(Path(folder), "cpu")
        theirs = transformers.NemotronHForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for module in theirs.modules():
        if hasattr(module, "time_step_limit"):  # the published kernels have no least time step
            module.time_step_min, module.time_step_limit = 0.0, (0.0, float("inf"))
    ids = torch.randint(10, 256, (TOKENS,), generator=torch.Generator().manual_seed(5))
    mine = nemotron_sums.log_probabilities(read, weights, ids)
    with torch.no_grad():
        logits = theirs(ids[None], use_cache=False).logits[0]
    answered = {"cold": {"single": {"answers": [{"tokens": [7, 9], "logprobs": [0.0, 0.0]}]}}}
    rows = nemotron_sums.log_probabilities(read, weights, torch.tensor([*ids[:5], 7]))
    return {
        "apart": (torch.log_softmax(logits.double(), -1) - mine).abs().max().item(),
        "distance": nemotron_sums.distance(
            read, weights, answered, {"single": [tuple(ids[:5].tolist())]}, "cpu"
        ),
        "wanted": [-rows[4, 7].item(), -rows[5, 9].item()],
    }


if __name__ == "__main__":
    interpreted.main(compare)
