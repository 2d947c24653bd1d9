"""Launches of Triton kernels recorded without a GPU, and each kernel compiled for the very
arguments of a launch.

Works in an ordinary test process, as host.compiled does; the arguments are tensors on the CPU.
"""

from dataclasses import dataclass
from typing import Any

import torch

from . import compiled

TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
BLOCK = 16  # what divides an address or a number, so that Triton compiles another kernel


@dataclass(frozen=True)
class Launch:
    """kernel: a triton.jit function. given: the arguments by name. options: num_warps and so on."""

    kernel: Any
    given: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self):
        return self.kernel.fn.__name__

    def compiled(self, capability):
        """host.compiled.compiled of the kernel as Triton would specialise it for this launch."""
        fixed = {self.kernel.arg_names[place] for place in self.kernel.constexprs}
        values = {
            name: parameter.default for name, parameter in self.kernel.signature.parameters.items()
        } | self.given
        constants = {
            name: value
            for name, value in values.items()
            if name in fixed or value is None or (isinstance(value, int) and value == 1)
        }
        values = {name: value for name, value in values.items() if name not in constants}
        signature = {name: _type(value) for name, value in values.items()}
        aligned = [name for name, value in values.items() if _divided(value)]
        return compiled.compiled(
            self.kernel, signature, constants, self.options, capability, aligned
        )


def _type(value):
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def _divided(value):
    """Whether 16 divides the address that a GPU's allocator gives the tensor, or the number."""
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % BLOCK == 0
    return isinstance(value, int) and value % BLOCK == 0


class Recorder:
    """Stands where a kernel stands: adds each launch to `launches`, and computes nothing."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def __getitem__(self, grid):
        return self._note

    def _note(self, *args, **words):
        names = self.kernel.arg_names
        given = dict(zip(names, args)) | {
            name: value for name, value in words.items() if name in names
        }
        self.launches.append(
            Launch(
                self.kernel,
                given,
                {name: value for name, value in words.items() if name not in names},
            )
        )
