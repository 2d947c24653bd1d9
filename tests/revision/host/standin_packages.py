"""Packages that sglang imports where it finds no GPU, and that no environment here has."""

import importlib.machinery
import sys
import types

# sglang's fallbacks for hosts without a GPU name vllm's kernels, and up to 0.5.7 its layers. Only
# these modules: quantization probes further ones, and must go on finding that vllm is not there.
VLLM = (
    "vllm",
    "vllm._custom_ops",
    "vllm.model_executor",
    "vllm.model_executor.layers",
    "vllm.model_executor.layers.activation",
    "vllm.model_executor.layers.layernorm",
)


class _StandIn(types.ModuleType):
    """A module with any public name: a layer of vllm_layers, else a class that cannot be made."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.startswith("vllm.model_executor.layers."):
            from . import vllm_layers

            return getattr(vllm_layers, name)
        return type(name, (), {"__init__": _cannot_run, "__module__": self.__name__})


def _cannot_run(self, *_, **__):
    raise NotImplementedError(f"{type(self).__module__}.{type(self).__name__} needs vllm and a GPU")


def _let_the_compilers_backend_load():
    """Its weak references to captured memory refuse an import where nothing can be captured."""
    name = "sglang.srt.compilation.weak_ref_tensor"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.weak_ref_tensor = module.weak_ref_tensors = lambda tensors: tensors
        sys.modules[name] = module


def install():
    """Put the stand-ins where `import` finds them, but for packages that are there."""
    _let_the_compilers_backend_load()
    for name in VLLM:
        if name in sys.modules:
            continue
        module = _StandIn(name)
        # importlib.util.find_spec refuses a module without
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
