"""Real model classes of the release under test, small, on the meta device or on the CPU."""

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import process, standin_packages

FOLDER = Path(__file__).parents[2] / "models"


def read(name):
    """The configs of tests/models/NAME.json. "like" there names an earlier config, whose values the
    config shares."""
    known = {}
    for kind, config in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")).items():
        known[kind] = known.get(config.pop("like", None), {}) | config
    return known


@dataclass(frozen=True)
class Kind:
    """A model family: the full names of its class and of its config class, and a small config."""

    model_class: str
    config_class: str
    values: dict[str, Any] = field(repr=False)


KINDS = {
    kind: Kind(config.pop("class"), config.pop("config_class"), config)
    for kind, config in read("small").items()
}


def _class_of(name):
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(module), name)


def config_of(kind, **changes):
    """The config object of `kind` (a key of KINDS) with `changes` to its values."""
    return _class_of(KINDS[kind].config_class)(**{**KINDS[kind].values, **changes})


FAMILIES = read("families")


def family(name, model_class=None):
    """The release's class `name` (a key of FAMILIES, below sglang.srt.models) on the meta device.

    Raises ModuleNotFoundError where the release has no such model. model_class: the class, where it
    is known.
    """
    values = {key: value for key, value in FAMILIES[name].items() if key != "kind"}
    config = _class_of(values.pop("config_class"))(**values)
    return construct(model_class or _class_of(f"sglang.srt.models.{name}"), config)


def build(
    kind, device="meta", dtype=torch.bfloat16, seed=0, server_args=None, pattern=None, **changes
):
    """The release's own model class for `kind`, from a small config with `changes`.

    device: "meta" (shapes only, nothing computed) or "cpu" (weights are normals of the config's
    initializer_range drawn from `seed`, vectors that scale are left at what the class set them to;
    where it is None, all is left).
    server_args: fields of ServerArgs other than their defaults. pattern: the letters of NemotronH's
    layers.
    """
    standin_packages.install()
    if pattern:
        changes |= dict(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern))
    config = config_of(kind, **changes)
    model = construct(_class_of(KINDS[kind].model_class), config, device, dtype, server_args)
    if device != "meta" and seed is not None:
        _draw_weights(model, config.initializer_range, seed)
    return model.eval()


def construct(model_class, config, device="meta", dtype=torch.bfloat16, server_args=None):
    """model_class(config) as a model runner calls it, for a class that KINDS lacks; see build."""
    args = process.default_server_args(**(server_args or {}))
    process.use_server_args(args)
    process.start_groups()
    process.start_dp_attention(args, getattr(config, "hidden_size", 128), dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), process.cpu_device_module():
            return model_class(config=config, quant_config=None)
    finally:
        torch.set_default_dtype(before)


def _draw_weights(model, scale, seed):
    """Matrices come uninitialised from sglang's layers, for a checkpoint to fill."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
