"""What each decoder layer is, which object its split op needs, and which layers no graph may hold.

Classes are known by their names: importing them would load kernels that the model does not use.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..compat import model_runner, ops, prefill_config
from . import stack

# breakable.mixers.beside_attention: what a layer that breaks at its mixer calls in its forward
_BREAKS_AT_MIXER = "beside_attention"
_MIXER = "MambaMixer2"
_STATEFUL = ("RadixAttention", "RadixLinearAttention", _MIXER)
# where a layer without a mixer has its MLP or MoE block
_BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "moe")
_INSIDE = {  # what such a block, or a mixer that is one, is made of; none of it keeps state
    "experts",
    "shared_experts",
    "shared_expert",
    "gate",
    "shared_expert_gate",
    "topk",
    "up_proj",
    "gate_proj",
    "gate_up_proj",
    "down_proj",
    "act_fn",
    "fc1_latent_proj",
    "fc2_latent_proj",
}
# where experts are found; a later one wins, as in the releases
_GATES = ("mlp", "block_sparse_moe", "moe", "mixer")
# Where a layer has its attention, and which part of that a split op gets. The order is that of the
# releases' own loops (ModelRunner.init_piecewise_cuda_graphs, 0.5.9), so that where they find an
# object, this finds the same.
_PLACES = {
    "self_attn": ("attn", "attn_mqa"),
    "attn": (),
    "linear_attn": ("attn",),
    "attention": ("attn",),
    "mixer": ("attn",),
}
_WHOLE = ("attn", "linear_attn")  # where the op gets the whole module if it lacks the part
# a model runner's lists by layer_id, and what of a Layer they hold
LISTS = {"attention_layers": "split_object", "moe_layers": "experts", "moe_fusions": "block"}


class Kind(enum.Enum):
    """What a decoder layer is: whether it keeps state, and through which op it runs."""

    ATTENTION = enum.auto()
    MAMBA2 = enum.auto()
    GDN = enum.auto()
    MLP = enum.auto()
    MOE = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True)
class Layer:
    """One decoder layer; index is its place in the stack.

    split_object: what the split op finds for it; None for a layer without state. block: the module
    that has experts, or None.
    """

    index: int
    class_name: str
    kind: Kind
    reason: str
    split_object: Any = None
    block: Any = None

    def __str__(self) -> str:
        return f"layer {self.index} ({self.class_name}): {self.reason}"

    @property
    def experts(self) -> Any:
        return getattr(self.block, "experts", None)

    @property
    def layer_id(self) -> int | None:
        """The number under which ops look the layer up."""
        found = self.split_object if self.split_object is not None else self.experts
        return getattr(found, "layer_id", None)


def describe(layers: Iterable[Any]) -> tuple[Layer, ...]:
    """The layers of a stack, in order. Only looks at attributes: meta tensors, stand-ins and real
    layers alike."""
    return tuple(_describe(index, layer) for index, layer in enumerate(layers))


def _describe(index: int, layer: Any) -> Layer:
    places = [getattr(layer, name, None) for name in _GATES]
    blocks = [place for place in places if hasattr(place, "experts")]
    return Layer(index, _name(layer), *_classify(layer), blocks[-1] if blocks else None)


def _classify(layer: Any) -> tuple[Kind, str, Any]:
    """Kind, reason and split object."""
    place = next((name for name in _PLACES if hasattr(layer, name)), None)
    if place is None:
        return *_without_state(layer), None
    module, kind = getattr(layer, place), Kind.GDN if place == "linear_attn" else Kind.ATTENTION
    part = next((name for name in _PLACES[place] if hasattr(module, name)), None)
    if part is not None:
        found = getattr(module, part)
        if _is_a(found, "ModuleList"):
            why = f"{place}.{part} is a list of attentions, of which an op would know one"
            return Kind.UNKNOWN, why, None
        return kind, f"has {place}.{part}", found
    if place in _WHOLE:
        return kind, f"has {place}", module
    if place == "mixer":
        return _mixer(module, layer)
    why = f"{place} ({_name(module)}) has no {' or '.join(_PLACES[place])}"
    return Kind.UNKNOWN, why, None


def _mixer(module: Any, layer: Any) -> tuple[Kind, str, Any]:
    if _is_a(module, _MIXER):
        return Kind.MAMBA2, f"its mixer is a {_MIXER}", layer
    kind, reason = _without_state(module)
    stranger = _stranger(layer, {"mixer"})
    if kind is not Kind.UNKNOWN and stranger:
        return Kind.UNKNOWN, f"beside its mixer, {stranger}", None
    return kind, f"its mixer ({_name(module)}) {reason}", None


def _without_state(module: Any) -> tuple[Kind, str]:
    """MLP or MoE, if it is known to be one and everything inside to keep no state; else UNKNOWN."""
    for part in _parts(module):
        if any(_is_a(part, name) for name in _STATEFUL):
            return Kind.UNKNOWN, f"keeps state in a {_name(part)} that no split op is known for"
    blocks = [getattr(module, name) for name in _BLOCKS if hasattr(module, name)]
    parts, known = [module, *blocks], _INSIDE.union(_BLOCKS)
    if not any(hasattr(part, "experts") or hasattr(part, "down_proj") for part in parts):
        return Kind.UNKNOWN, "has no attention and is no known MLP or MoE"
    if stranger := next(filter(None, (_stranger(part, known) for part in parts)), None):
        return Kind.UNKNOWN, stranger
    if any(hasattr(part, "experts") for part in parts):
        return Kind.MOE, "has experts and keeps no state"
    return Kind.MLP, "is an MLP and keeps no state"


def _stranger(module: Any, known: set[str]) -> str | None:
    """The first child of `module` that is neither of the `known` names nor a norm, in words."""
    children = module.named_children() if callable(getattr(module, "named_children", None)) else ()
    for name, child in children:
        if name not in known and "norm" not in f"{name} {_name(child)}".lower():
            return f"holds {name} ({_name(child)}), of which nobody knows whether it keeps state"
    return None


def _is_a(module: Any, class_name: str) -> bool:
    return any(base.__name__ == class_name for base in type(module).__mro__)


def _name(module: Any) -> str:
    return type(module).__name__


def _parts(module: Any) -> Iterable[Any]:
    return module.modules() if callable(getattr(module, "modules", None)) else ()


def complete_layer_lists(runner: Any) -> bool:
    """Bring the layer lists of a ModelRunner, after its own loop, to one entry per decoder layer;
    whether the graph may be captured. Complete lists are left alone."""
    needed, found = runner.model_config.num_hidden_layers, len(runner.attention_layers)
    if found >= needed:
        return True
    try:
        rows = describe(stack.find(runner.model).layers)
        reason = why_incomplete(rows, found, needed)
    except stack.NoStack as error:
        reason = str(error)
    if reason:
        model_runner.refused(runner, reason)
        return False
    for name in ("attention_layers", *model_runner.layer_lists(runner)):
        setattr(runner, name, [getattr(row, LISTS[name]) for row in rows])
    return True


def why_incomplete(rows: Sequence[Layer], found: int, needed: int) -> str | None:
    """Why layers must not be captured of which the release's own loop collected attention for
    `found` of `needed`; None where `rows` complete its lists: Mamba2 and delta nets alone."""
    if len(rows) < needed:
        return f"the model has {len(rows)} decoder layers, its configuration says {needed}"
    if unknown := next((row for row in rows if row.kind is Kind.UNKNOWN), None):
        return str(unknown)
    net = next((row for row in rows if row.kind is Kind.GDN), None)
    if net and not ops.splits_at_linear_attention():
        return f"{net}; this release has no split op for it"
    if not any(row.kind is Kind.ATTENTION for row in rows):
        return f"no attention layer among {len(rows)}; first is {rows[0]}"
    if not any(row.kind in (Kind.MAMBA2, Kind.GDN) for row in rows):
        missing = next((row for row in rows if row.split_object is None), None)
        return str(missing or f"this release lists {found} of the model's {needed} layers")
    if moved := next((row for row in rows if row.layer_id not in (None, row.index)), None):
        return f"layer {moved.index} ({moved.class_name}) calls itself layer {moved.layer_id}"
    return None


def outside_breaks(layers: Sequence[Any]) -> str | None:
    """Which layer keeps state that no break of the overlay's graph covers, in words."""
    rows = describe(layers)
    if unknown := next((row for row in rows if row.kind is Kind.UNKNOWN), None):
        return str(unknown)
    asked = [pair for pair in enumerate(layers) if not breaks_at_mixer(pair[1])]
    return _uncovered(asked, [row.split_object for row in rows])


def breaks_at_mixer(layer: Any) -> bool:
    """Whether a layer makes its own break of the breakable graph round its Mamba2 mixer, as
    Falcon-H1's do (models/falcon_h1.py). A class that overrides such a forward does not."""
    code = getattr(getattr(type(layer), "forward", None), "__code__", None)
    return _BREAKS_AT_MIXER in getattr(code, "co_names", ())


def uncovered_mixer(runner: Any) -> str | None:
    """Which layer of a ModelRunner (up to 0.5.13) has a Mamba2 mixer that no split op covers, in
    words: torch.compile would trace it with the batch of the trace. Raises NoStack."""
    return _uncovered(enumerate(stack.find(runner.model).layers), runner.attention_layers)


def captures_mixer(runner: Any, owner: Any) -> bool:
    """Whether the graph would capture a Mamba2 mixer with the state slots of one batch (from 0.5.14
    on, where a release makes its breaks itself).

    owner: the layer stack. Layers of other ranks are looked at too. The breakable graph alone sees
    the break that a layer makes at its mixer.
    """
    breakable = prefill_config.prefill(runner.server_args).backend == "breakable"
    asked = [pair for pair in _numbered(owner) if not (breakable and breaks_at_mixer(pair[1]))]
    found = _uncovered(asked, model_runner.attention_layers(runner, owner))
    if found is None:
        return False
    model_runner.refused(runner, f"decoder {found}", model_runner.DISABLED)
    return True


def _uncovered(layers: Iterable[tuple[int, Any]], breaks: Iterable[Any]) -> str | None:
    """The first of numbered `layers` with a Mamba2 mixer that lies in none of `breaks`, in
    words."""
    covered = {id(part) for module in breaks if module is not None for part in _parts(module)}
    for index, layer in layers:
        if any(_is_a(part, _MIXER) and id(part) not in covered for part in _parts(layer)):
            return (
                f"layer {index} ({_name(layer)}) runs a Mamba2 mixer outside of every graph break:"
                " captured, it would go on with the state slots of the batch that was captured"
            )
    return None


def lacks_break(runner: Any, owner: Any, backend: str) -> bool:
    """Whether a layer of this rank cannot be captured, where the release counted too few with
    attention (from 0.5.19 on). owner: the layer stack.

    A layer that keeps state runs between captured pieces: the runner lists what it breaks at. The
    breakable graph captures a `mixer` that is an MLP or MoE block.
    """
    known, breaks = dict(_numbered(owner)), dict(enumerate(runner.attention_layers))
    for index in range(runner.layer_info.start_layer, runner.layer_info.end_layer):
        mixer = getattr(known.get(index), "mixer", None)
        stateless = hasattr(mixer, "experts") or hasattr(mixer, "down_proj")
        if breaks.get(index) is not None or (stateless and backend == "breakable"):
            continue
        what = (
            f"no attention, which the {backend} graph needs in every layer"
            if stateless
            else "no attention to break at and is no MLP or MoE block"
        )
        kind = _name(known[index]) if index in known else "missing"
        reason = f"decoder layer {index} ({kind}) has {what}"
        speaks = model_runner.leads_its_layers
        model_runner.refused(runner, reason, model_runner.DISABLED, speaks)
        return True
    return False


def _numbered(owner: Any) -> Iterable[tuple[int, Any]]:
    """The layers of a stack, which may have them by name."""
    return enumerate(owner.layers.values() if hasattr(owner.layers, "values") else owner.layers)
