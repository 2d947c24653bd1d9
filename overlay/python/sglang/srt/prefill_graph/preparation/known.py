"""Tensors on a GPU whose values the host has too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Known(torch.Tensor):
    """A tensor that answers from the host where code asks for its values by cpu(), to("cpu"), sum()
    or a slice. What is computed of it is an ordinary tensor; whoever changes it has to make
    another."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    host: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor, host: torch.Tensor) -> Known:
        """host: the same values on the host. Raises ValueError for another shape or type."""
        if tensor.shape != host.shape or tensor.dtype != host.dtype:
            raise ValueError(
                f"{tuple(host.shape)} {host.dtype} for {tuple(tensor.shape)} {tensor.dtype}"
            )
        made = tensor.as_subclass(cls)
        made.host = host
        return made

    def cpu(self) -> torch.Tensor:
        return self.host

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and str(args[0]) == "cpu":
            return self.host
        return self.as_subclass(torch.Tensor).to(*args, **kwargs)

    def sum(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """From the host where it is of all values."""
        whole = not args and not kwargs
        return self.host.sum() if whole else self.as_subclass(torch.Tensor).sum(*args, **kwargs)

    def __getitem__(self, index: Any) -> torch.Tensor:
        found = self.as_subclass(torch.Tensor)[index]
        return Known.of(found, self.host[index]) if isinstance(index, slice) else found


def listed(values: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Integers of the host as a tensor there, of `like`'s type."""
    return torch.tensor(values, dtype=like.dtype)
