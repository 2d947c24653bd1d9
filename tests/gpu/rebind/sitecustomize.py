"""A loader that replaces parameters, as packing a quantised layer does: this folder first on
PYTHONPATH.

After each load, every `down_proj` gets a new parameter with the same values. The old one keeps its
memory, and holds zeros: a graph that still reads it answers something else, and reads no memory
that is another's.
"""

import functools
import importlib.util
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("startup", HERE.parent / "startup.py")
startup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(startup)
MODULE = "sglang.srt.model_loader.loader"
old = []  # never given back


def rebind(model):
    import torch

    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if not name.endswith("down_proj") or not isinstance(weight, torch.nn.Parameter):
            continue
        new = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
        vars(new).update(vars(weight))  # its loader
        layer.weight = new
        weight.detach().zero_()
        old.append(weight)


def hook(module):
    loader = module.DefaultModelLoader
    original = loader.load_weights_and_postprocess

    @functools.wraps(original)
    def load(model, weights, target_device):
        result = original(model, weights, target_device)
        rebind(model)
        return result

    loader.load_weights_and_postprocess = staticmethod(load)


startup.after_import([MODULE], hook)
startup.next_sitecustomize(HERE)
