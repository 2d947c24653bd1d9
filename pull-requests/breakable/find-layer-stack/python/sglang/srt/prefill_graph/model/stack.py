"""Find the module that owns a model's decoder layers, and say what was looked at."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sglang.srt.runtime_context import get_parallel

logger = logging.getLogger(__name__)

_INNER = ("language_model", "model", "thinker")  # where wrappers keep the model inside, in the order in which it is tried
_MOST = 16  # modules to probe: attributes that are made when they are asked for could go on for ever


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
        try:
            owner = explicit()
        except Exception as error:  # code of a model, which may be anybody's
            raise NoStack(f"{type(model).__name__}.get_layer_stack() raised {error!r}") from error
        if _has_layers(owner):
            return Stack(owner, "get_layer_stack()")
        raise NoStack(f"{type(model).__name__}.get_layer_stack() gave a {type(owner).__name__} without layers")
    probed, waiting, seen = [], [(model, "")], set()
    while waiting and len(probed) < _MOST:
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


def inner_stack(model: Any) -> Any:
    """The module that owns the decoder layers inside of `model`: a graph captures its forward, the head stays outside.

    Raises NoStack, also where `model` owns the layers itself (drafts, embedding models): then there is no head outside.
    """
    found = find(model)
    if found.owner is model:
        raise NoStack(f"{type(model).__name__} has the layers itself, and no language model inside")
    return found.owner


def find_layer_stack(runner: Any) -> Any | None:
    """inner_stack() of a model runner's model, or None: then its prefill runs eagerly, and the first rank has logged one warning."""
    try:
        return inner_stack(runner.model)
    except NoStack as error:
        if get_parallel().tp_rank == 0:
            logger.warning("Prefill runs eagerly, without a CUDA graph: %s: %s", type(runner.model).__name__, error)
        return None


def _has_layers(owner: Any) -> bool:
    try:
        return len(owner.layers) > 0
    except (AttributeError, TypeError):
        return False
