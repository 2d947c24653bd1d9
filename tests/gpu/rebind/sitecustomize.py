"""A loader that replaces parameters, as packing a quantised layer does: this folder first on
PYTHONPATH.

After each load, every `down_proj` gets a new parameter with the same values. The old one keeps its
memory, and holds zeros: a graph that still reads it answers something else, and reads no memory
that is another's.
"""

import functools
import importlib.abc
import importlib.util
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
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


class AfterImport(importlib.abc.MetaPathFinder):
    done = False

    def find_spec(self, name, path, target=None):
        if name != MODULE or self.done:
            return None
        self.done = True
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def next_sitecustomize():
    """Python runs the first one on its path alone."""
    folders = [pathlib.Path(folder or ".").resolve() for folder in sys.path]
    for folder in folders[folders.index(HERE) + 1 :] if HERE in folders else []:
        file = folder / "sitecustomize.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("next_sitecustomize", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


sys.meta_path.insert(0, AfterImport())
next_sitecustomize()
