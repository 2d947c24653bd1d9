"""Have breaks of the release's own breakable graph hold their inputs otherwise: this folder on
PYTHONPATH, BREAK_HOLDS=main (weak views of all, as upstream) or strong (all of them, as
sglang#37448). Left out or "ours": as the tree does it.

It changes names of a module after its import and no file. A tree that the queue has patched asks
`holder`; a branch of the pull request asks `OwnMemory.of_pool`; an untouched one makes weak views.
"""

import importlib.util
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODULE = (
    "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph",
    "sglang.srt.model_executor.breakable_cuda_graph.breakable_cuda_graph",  # 0.5.11 to 0.5.13
)


class OwnsAll:
    """In place of OwnMemory: every tensor is the graph's own, so that a weak view is made of it."""

    def __init__(self, pool=None):
        pass

    @classmethod
    def of_pool(cls, pool):
        return cls()

    def owns(self, tensor):
        return tensor.device.type != "cpu"


class OwnsNothing(OwnsAll):
    """In place of OwnMemory: every tensor is held."""

    @classmethod
    def of_pool(cls, pool):
        return None


def change(module, way):
    """Switch the module to `way`. Raises RuntimeError where "ours" is asked of an untouched one."""
    weak = module._weak_ref_if_tensor
    patched, branch = hasattr(module, "holder"), hasattr(module, "_own_memory_var")
    if way == "ours":
        if not patched and not branch:
            raise RuntimeError(f"{module.__name__} is untouched: lay the queue or the branch on it")
        return
    if branch:
        module.OwnMemory = {"main": OwnsAll, "strong": OwnsNothing}[way]
    elif patched:
        module.OwnMemory = OwnsAll
        module.holder = lambda capture: weak if way == "main" else lambda value: value
    elif way == "strong":
        module._weak_ref_if_tensor = lambda value: value


class AfterImport:
    """Runs `change` once the module is there."""

    def find_spec(self, name, path=None, target=None):
        if name not in MODULE:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module, os.environ["BREAK_HOLDS"])

        spec.loader.exec_module = exec_module
        return spec


def next_sitecustomize():
    """Another one further down the path would not be run otherwise."""
    folders = [pathlib.Path(folder or ".").resolve() for folder in sys.path]
    for folder in folders[folders.index(HERE) + 1 :] if HERE in folders else []:
        file = folder / "sitecustomize.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("next_sitecustomize", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


if os.environ.get("BREAK_HOLDS"):
    sys.meta_path.insert(0, AfterImport())
next_sitecustomize()
