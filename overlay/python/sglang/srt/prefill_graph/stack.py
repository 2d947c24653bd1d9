"""Find the module that owns a model's decoder layers, and say what was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_INNER = ("language_model", "model", "thinker")  # where wrappers keep the model inside, in the order in which it is tried


@dataclass(frozen=True)
class Stack:
    """Where the decoder layers are. path: from the outer model, as "model"; "" is the outer model itself."""

    owner: Any
    path: str

    @property
    def layers(self) -> tuple[Any, ...]:
        """The decoder layers in order; an index is a layer_id."""
        return tuple(self.owner.layers)


class NoStack(LookupError):
    """No decoder layers were found. str() says what was probed."""


def find(model: Any) -> Stack:
    """The stack of a whole model (`…ForCausalLM`, or a multimodal wrapper of one).

    A model can say so itself with get_layer_stack(), which returns the module that has `.layers`. Otherwise its
    language_model, model and thinker attributes are followed inwards until one has `.layers`. Raises NoStack.
    """
    explicit = getattr(model, "get_layer_stack", None)
    if callable(explicit):
        owner = explicit()
        if _has_layers(owner):
            return Stack(owner, "get_layer_stack()")
        raise NoStack(f"{type(model).__name__}.get_layer_stack() gave a {type(owner).__name__} without layers")
    probed, waiting, seen = [], [(model, "")], set()
    while waiting:
        owner, path = waiting.pop(0)
        if id(owner) in seen:  # some models point back at themselves
            continue
        seen.add(id(owner))
        if _has_layers(owner):
            return Stack(owner, path)
        probed.append(f"{path or 'the model'} ({type(owner).__name__})")
        inner = [(getattr(owner, name, None), f"{path}.{name}".lstrip(".")) for name in _INNER]
        waiting += [(module, name) for module, name in inner if module is not None]
    raise NoStack(f"no decoder layers in {', '.join(probed)}")


def _has_layers(owner: Any) -> bool:
    try:
        return len(owner.layers) > 0
    except (AttributeError, TypeError):
        return False
