"""NemotronH in float64, by its formulas: what a prompt's log-probabilities are without rounding.

Two trees whose kernels round in other places differ, and neither is wrong. This says how far each
one is from the model itself. Dense models only: where a router picks experts, rounding may pick
others.

    python nemotron_sums.py MODEL OUT ENGINE=ANSWERS.json [...]     # answers as engine.py writes them

OUT gets {"ENGINE": {"mean", "worst", "tokens"}}: each engine's distance from these
log-probabilities of its own tokens. MODEL: a folder that models.py wrote.
"""  # noqa: E501

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from scan_answers import past

Weights = Callable[[str], torch.Tensor]


def log_probabilities(config: dict[str, Any], weights: Weights, ids: torch.Tensor) -> torch.Tensor:
    """Of every next token behind each of `ids`: (tokens,) -> (tokens, vocabulary).

    weights: name in the checkpoint -> tensor in the type that sums are made in, on ids's device.
    """
    x = weights("backbone.embeddings.weight")[ids]
    for number, kind in enumerate(config["hybrid_override_pattern"]):
        layer = f"backbone.layers.{number}"
        inside = _normed(x, weights(f"{layer}.norm.weight"), config["layer_norm_epsilon"])
        x = x + MIXERS[kind](config, lambda name: weights(f"{layer}.mixer.{name}"), inside)
    x = _normed(x, weights("backbone.norm_f.weight"), config["layer_norm_epsilon"])
    return F.log_softmax(x @ weights("lm_head.weight").T, dim=-1)


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def _mlp(config: dict[str, Any], own: Weights, x: torch.Tensor) -> torch.Tensor:
    return F.relu(x @ own("up_proj.weight").T).square() @ own("down_proj.weight").T


def _attention(config: dict[str, Any], own: Weights, x: torch.Tensor) -> torch.Tensor:
    """Causal attention of grouped queries, without positions."""
    q, k, v = (
        (x @ own(f"{part}_proj.weight").T).unflatten(-1, (-1, config["head_dim"])).transpose(0, 1)
        for part in "qkv"
    )
    k, v = (part.repeat_interleave(len(q) // len(part), dim=0) for part in (k, v))
    done = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return done.transpose(0, 1).flatten(1) @ own("o_proj.weight").T


def _mamba2(config: dict[str, Any], own: Weights, x: torch.Tensor) -> torch.Tensor:
    """y_l = sum over m <= l of exp(A_l - A_m) (c_l . b_m) dt'_m x_m + d x_l, gated and normed."""
    heads, size, groups, n = (
        config[key] for key in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    )
    inner, shared = heads * size, groups * n
    gate, mixed, dt = (x @ own("in_proj.weight").T).split(
        [inner, inner + 2 * shared, heads], dim=-1
    )
    taps = own("conv1d.weight")
    mixed = F.conv1d(
        F.pad(mixed.T, (taps.shape[-1] - 1, 0)), taps, own("conv1d.bias"), groups=len(taps)
    )
    u, b, c = F.silu(mixed.T).split([inner, shared, shared], dim=-1)
    u = u.unflatten(-1, (heads, size))
    b, c = (part.unflatten(-1, (groups, n)) for part in (b, c))
    step = F.softplus(dt + own("dt_bias"))
    total = -(step * own("A_log").exp()).cumsum(0)
    y = own("D")[None, :, None] * u
    for head in range(heads):  # one at a time: tokens squared of each
        group = head * groups // heads
        weight = (c[:, group] @ b[:, group].T) * past(total[:, head : head + 1])[..., 0]
        y[:, head] += (weight * step[None, :, head]) @ u[:, head]
    y = (y.flatten(1) * F.silu(gate)).unflatten(-1, (groups, -1))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + config["layer_norm_epsilon"])
    return (y.flatten(1) * own("norm.weight")) @ own("out_proj.weight").T


MIXERS = {"M": _mamba2, "*": _attention, "-": _mlp}  # letters of hybrid_override_pattern


def read(folder: Path, device: str) -> tuple[dict[str, Any], Weights]:
    """A checkpoint's configuration, and its tensors in float64."""
    from safetensors.torch import load_file

    held = {
        name: tensor.to(device, torch.float64)
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    return json.loads((folder / "config.json").read_text()), held.__getitem__


def answered(passes: dict[str, Any], prompts: dict[str, Any]) -> Iterator[tuple[list[int], dict]]:
    """Each prompt with what the engine said behind it. prompts: call -> token ids of its
    prompts."""
    for calls in passes.values():
        for call, got in calls.items():
            yield from zip(prompts[call], got["answers"])


def distance(config: dict, weights: Weights, passes: dict, prompts: dict, device: str) -> dict:
    """How far the log-probabilities of an engine's tokens are from the model's."""
    known: dict[tuple[int, ...], torch.Tensor] = {}
    off: list[float] = []
    for prompt, answer in answered(passes, prompts):
        ids = (*prompt, *answer["tokens"])
        if ids not in known:
            rows = log_probabilities(config, weights, torch.tensor(ids[:-1], device=device))
            wanted = torch.tensor(answer["tokens"], device=device)[:, None]
            known[ids] = rows[len(prompt) - 1 :].gather(1, wanted)[:, 0].cpu()
        off += (known[ids] - torch.tensor(answer["logprobs"], dtype=torch.float64)).abs().tolist()
    return {"mean": round(sum(off) / len(off), 6), "worst": round(max(off), 5), "tokens": len(off)}


def main(words: list[str]) -> None:
    import cases

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config, weights = read(Path(words[0]), device)
    found = {}
    for word in words[2:]:
        engine, _, file = word.partition("=")
        passes = json.loads(Path(file).read_text())["passes"]
        prompts = {call.name: call.prompts for name in passes for call in cases.of_pass(name)}
        found[engine] = distance(config, weights, passes, prompts, device)
    Path(words[1]).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
