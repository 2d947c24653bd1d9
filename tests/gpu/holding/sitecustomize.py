"""Have breaks of the release's own breakable graph hold their inputs otherwise: this folder on
PYTHONPATH, BREAK_HOLDS=main (weak views of all, as upstream) or strong (all of them, as
sglang#37448). Left out or "ours": as the tree does it.

It changes names of a module after its import and no file. A tree that the queue has patched asks
`holder`; a branch of the pull request asks `OwnMemory.of_pool`; an untouched one makes weak views.
"""

import importlib.util
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("startup", HERE.parent / "startup.py")
startup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(startup)
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


if os.environ.get("BREAK_HOLDS"):
    startup.after_import(MODULE, lambda module: change(module, os.environ["BREAK_HOLDS"]))
startup.next_sitecustomize(HERE)
