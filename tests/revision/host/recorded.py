"""A CUDA graph for tensors on the CPU: a capture records every op that runs, a replay runs these
ops again.

As on a GPU a replay reads and writes the tensors of the capture, whatever Python has done with them
since, and memory that was only allocated holds anything: here NaN.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph:
    """Stands in for torch.cuda.CUDAGraph inside of `recording`."""

    recorder = None

    def __init__(self, keep_graph=False):
        self.ops = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert Graph.recorder.target is None, "a capture began inside of another"
        Graph.recorder.target = self

    def capture_end(self):
        assert Graph.recorder.target is self, "a capture ended that had not begun"
        Graph.recorder.target = None

    def replay(self):
        for function, args, kwargs, result in self.ops:
            again = function(*args, **kwargs)
            inputs = {
                _storage(leaf)
                for leaf in tree_leaves((args, kwargs))
                if isinstance(leaf, torch.Tensor)
            }
            for old, new in zip(tree_leaves(result), tree_leaves(again)):
                if isinstance(old, torch.Tensor) and _storage(old) not in inputs:
                    old.copy_(
                        _poisoned(new)
                        if function.overloadpacket.__name__.startswith(("empty", "new_empty"))
                        else new
                    )


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _poisoned(tensor):
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


class Recorder(TorchDispatchMode):
    """Notes every op for the graph that is being captured. bodies: sglang's own ops by name, of
    which the ops inside are noted: their Python does not run at a replay."""

    def __init__(self, bodies):
        super().__init__()
        self.bodies = bodies
        self.target = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ in self.bodies:
            with self:
                return self.bodies[function.overloadpacket.__name__](*args, **kwargs)
        result = function(*args, **kwargs)
        if self.target is not None:
            self.target.ops.append((function, args, kwargs, result))
        return result


@contextlib.contextmanager
def recording(monkeypatch, **bodies):
    """Let captures on the CPU work: torch.cuda.CUDAGraph is `Graph`, and there is a current stream.

    bodies: the Python of sglang's own ops, which have kernels for GPU tensors only.
    """
    recorder = Recorder(bodies)
    monkeypatch.setattr(Graph, "recorder", recorder)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda *_: [])
    with recorder:
        yield
