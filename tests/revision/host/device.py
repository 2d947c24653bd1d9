"""A stand-in for a GPU: memory that is handed out again as soon as it is free, and CUDA graphs of
kernels.

    device = Device()
    device.install(monkeypatch)             torch.cuda.CUDAGraph, memory_snapshot and current_stream
    x = device.full(3.0, rows)              from the pool of the segment that is being captured, else from the default one
    device.launch(torch.add, x, 1, out=y)   runs now; during a capture it is recorded instead, and runs in each replay

Freed memory stays readable: who reads it finds what its next owner wrote.
"""  # noqa: E501

import ctypes
import functools
import math
import sys
import weakref
from types import ModuleType, SimpleNamespace

import torch

from . import late

DEFAULT_POOL = (0, 0)
CAPACITY = 1 << 20
_BREAKABLE = (
    "sglang.srt.model_executor.breakable_cuda_graph.breakable_cuda_graph",
    "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph",
)
_WEAK_REFS = (
    "sglang.srt.compilation.weak_ref_tensor",
    "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor",
)


class DeviceTensor(torch.Tensor):
    """Says that it is on a GPU: some releases treat tensors on the host otherwise."""

    device = property(lambda self: torch.device("cuda", 0))


def _tensor(address, count):
    """A tensor of `count` floats at `address`, and the object that lives as long as its storage."""
    memory = (ctypes.c_float * count).from_address(address)
    return torch.frombuffer(memory, dtype=torch.float32).as_subclass(DeviceTensor), memory


def weak_view(tensor):
    """What sgl_kernel.weak_ref_tensor makes: the same shape and address, no share in the memory."""
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))
    return _tensor(tensor.data_ptr(), last + 1)[0].as_strided(tensor.shape, tensor.stride())


class Device:
    """blocks: pool -> {address: bytes} of all it got. free: pool -> addresses, the newest last."""

    def __init__(self):
        self._arena = (ctypes.c_char * CAPACITY)()
        self._next = ctypes.addressof(self._arena)
        self.blocks, self.free = {}, {}
        self.snapshots = 0
        self.capturing = None

    def install(self, monkeypatch):
        monkeypatch.setattr(
            torch.cuda, "CUDAGraph", type("CUDAGraph", (_Segment,), {"device": self})
        )
        monkeypatch.setattr(torch.cuda, "memory_snapshot", self.memory_snapshot)
        monkeypatch.setattr(
            torch.cuda,
            "current_stream",
            lambda device=None: SimpleNamespace(cuda_stream=0, stream_id=0),
        )

    def full(self, value, *shape):
        """A new tensor. Its memory is the last freed block that is large enough, or new."""
        pool = self.capturing.pool if self.capturing else DEFAULT_POOL
        blocks, free = self.blocks.setdefault(pool, {}), self.free.setdefault(pool, [])
        size = 4 * math.prod(shape)
        address = next((address for address in reversed(free) if blocks[address] >= size), None)
        if address is None:
            address, self._next = self._next, self._next + size
            blocks[address] = size
        else:
            free.remove(address)
        tensor, memory = _tensor(address, math.prod(shape))
        weakref.finalize(memory, free.append, address)
        self.launch(torch.Tensor.fill_, tensor, value)
        return tensor.view(shape)

    def launch(self, kernel, *args, **kwargs):
        """kwargs: tensors alone. A recorded kernel keeps addresses, not tensors."""
        if self.capturing is None:
            kernel(*args, **kwargs)
            return
        args = [weak_view(arg) if torch.is_tensor(arg) else arg for arg in args]
        out = {name: weak_view(tensor) for name, tensor in kwargs.items()}
        self.capturing.kernels.append(functools.partial(kernel, *args, **out))

    def in_use(self, pool):
        """The number of blocks of the pool that some tensor keeps."""
        return len(self.blocks.get(pool, {})) - len(self.free.get(pool, []))

    def memory_snapshot(self, pool=DEFAULT_POOL):
        self.snapshots += 1
        states = ("active_allocated", "inactive")
        asked = self.blocks if pool == DEFAULT_POOL else {pool: self.blocks.get(pool, {})}
        return [
            {
                "address": address,
                "total_size": size,
                "segment_pool_id": pool,
                "device": 0,
                "blocks": [
                    {"address": address, "size": size, "state": states[address in self.free[pool]]}
                ],
            }
            for pool, blocks in asked.items()
            for address, size in blocks.items()
        ]


class _Segment:
    """torch.cuda.CUDAGraph. Nothing of its memory is kept from being handed out in its pool."""

    device: Device

    def __init__(self, keep_graph=False):
        self.pool, self.kernels = None, []

    def capture_begin(self, pool=DEFAULT_POOL, capture_error_mode="global", **_):
        self.pool = (-1, id(self)) if pool == DEFAULT_POOL else pool
        self.device.capturing = self

    def capture_end(self):
        self.device.capturing = None

    def instantiate(self):
        pass

    def replay(self):
        for kernel in self.kernels:
            kernel()


def primitive(monkeypatch):
    """The release's own module of BreakableCUDAGraph, on an installed Device. Raises ImportError
    where the release has none."""
    for name in _WEAK_REFS:
        module = ModuleType(name)
        module.weak_ref_tensors = weak_view
        monkeypatch.setitem(sys.modules, name, module)
    module = late.first(*_BREAKABLE)
    if hasattr(module, "get_device_module"):
        monkeypatch.setattr(module, "get_device_module", lambda: torch.cuda)
    return module
