"""Count where the host would have to wait for a GPU to tell it which values of a mask are set.

Tensors on the CPU wait for nothing, but the same ops run. What a mask decides on the host is read
(`if mask.any()`), or it is the size of a result (`nonzero`, `x[mask]`).
"""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READ = {"_local_scalar_dense", "is_nonzero", "item"}
_SIZE_A_RESULT = {"nonzero", "masked_select", "index", "index_put", "index_put_"}


class MaskReads(TorchDispatchMode):
    """In it, `names` gains the name of every op that the host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in _READ | _SIZE_A_RESULT and any(
            _is_mask(leaf) for leaf in tree_leaves((args, kwargs))
        ):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def _is_mask(leaf: object) -> bool:
    return str(getattr(leaf, "dtype", "")) == "torch.bool"
