"""Find the module that owns a model's decoder layers, and say what was looked at."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..compat import model_runner
from . import multimodal

logger = logging.getLogger(__name__)

# where wrappers keep the model inside, in the order in which it is tried
_INNER = ("language_model", "model", "thinker")
# modules to probe: attributes that are made when they are asked for could go on for ever
_MOST = 16


@dataclass(frozen=True)
class Stack:
    """Where the decoder layers are. path: from the outer model, as "model"; "" is the outer model
    itself."""

    owner: Any
    path: str

    @property
    def layers(self) -> tuple[Any, ...]:
        """The decoder layers in order; an index is a layer_id."""
        return tuple(self.owner.layers)


class NoStack(LookupError):
    """No decoder layers were found. str() says what was probed."""


def find(model: Any) -> Stack:
    """The stack of a whole model (`…ForCausalLM`, or a multimodal wrapper of one): what its
    get_layer_stack() returns, or the first of _INNER inwards that has `.layers`. Raises NoStack."""
    explicit = getattr(model, "get_layer_stack", None)
    if callable(explicit):
        try:
            owner = explicit()
        except Exception as error:  # code of a model, which may be anybody's
            raise NoStack(f"{type(model).__name__}.get_layer_stack() raised {error!r}") from error
        if _has_layers(owner):
            return Stack(owner, "get_layer_stack()")
        what = f"gave a {type(owner).__name__} without layers"
        raise NoStack(f"{type(model).__name__}.get_layer_stack() {what}")
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
    """The module that owns the decoder layers inside of `model`: a graph captures its forward, the
    head stays outside. Raises NoStack, also where `model` owns the layers itself (drafts, embedding
    models)."""
    found = find(model)
    if found.owner is model:
        raise NoStack(f"{type(model).__name__} has the layers itself, and no language model inside")
    return found.owner


def language_model(model: Any) -> SimpleNamespace:
    """inner_stack() as the `model` of an object. There the prefill runner of 0.5.14 to 0.5.16 looks
    for it."""
    return SimpleNamespace(model=inner_stack(model))


def embeds_by_name(graph_runner: Any, forward_batch: Any) -> dict[str, Any]:
    """The batch's embeddings by the name of the layer stack's parameter; nothing where it has none.

    graph_runner: the prefill graph's, with `layer_model`, while it captures. From 0.5.15 on it
    keeps the place of that parameter, but only knows "input_embeds".
    """
    parameters = list(inspect.signature(graph_runner.layer_model.forward).parameters)
    names = [name for name in ("input_embeds", "inputs_embeds") if name in parameters]
    if hasattr(graph_runner, "_input_embeds_arg_idx"):
        graph_runner._input_embeds_arg_idx = parameters.index(names[0]) if names else None
    return {name: multimodal.embeds(graph_runner, forward_batch) for name in names}


def find_layer_stack(runner: Any) -> Any | None:
    """inner_stack() of a model runner's model, or None: then its prefill runs eagerly, and the
    first rank has logged why. Layers of drafts have no stack in DeepSeek and others: no warning, as
    upstream has it from 0.5.20 on."""
    try:
        owner = inner_stack(runner.model)
        reason = model_runner.out_of_reach(runner, owner)
    except NoStack as error:
        owner, reason = None, str(error)
    if reason is None:
        return owner
    said = f"{type(runner.model).__name__}: {reason}"
    if not runner.is_draft_worker:
        model_runner.refused(runner, said, "Prefill runs eagerly, without a CUDA graph: %s")
    elif model_runner.is_first_rank(runner):
        logger.info("Disable draft prefill CUDA graph because of the draft model: %s", said)
    return None


def _has_layers(owner: Any) -> bool:
    try:
        return len(owner.layers) > 0
    except (AttributeError, TypeError):
        return False
