"""What a checkpoint of tests/gpu fills of a model's parameters."""

import torch


def by(model, tensors, but=()):
    """Load `tensors`, by name, into parameters of NaN, all but those that `but` names ends of.

    Returns the names of parameters that have NaN left, and the numbers of elements of the
    checkpoint and of the parameters.
    """
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if not name.endswith(but)
    }
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    model.load_weights(iter(tensors.items()))
    left = [name for name, parameter in parameters.items() if parameter.isnan().any()]
    counts = (sum(map(torch.Tensor.numel, group.values())) for group in (tensors, parameters))
    return left, *counts
