"""The checkpoints that tests/gpu makes, as the release reads them and fills its models."""

import models
import torch
import weights


def read(folder, config=None):
    """What an engine makes of config.json in `folder`; config: what is written there before."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    if config is not None:
        models.write_config(folder, config)
    return get_config(str(folder), trust_remote_code=False)


def drawn(config):
    """The tensors of a checkpoint, by name, each of one value: to draw them whole takes seconds."""
    return {
        name: weights.draw(name, (1,) * len(shape), kind).expand(shape)
        for name, shape, kind in weights.shapes(config)
    }


def fill(model, tensors, but=()):
    """Load `tensors`, by name, into parameters of NaN, all but those that `but` names ends of.
    Returns the names of parameters that have NaN left, and the numbers of elements of the
    checkpoint and of the parameters."""
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if not name.endswith(but)
    }
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    model.load_weights(iter(tensors.items()))
    left = [name for name, parameter in parameters.items() if parameter.isnan().any()]
    counts = (sum(map(torch.Tensor.numel, group.values())) for group in (tensors, parameters))
    return left, *counts
