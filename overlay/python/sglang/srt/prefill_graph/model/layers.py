"""What each decoder layer is, and which object its split op needs: one table, one row per layer_id.

    table = describe(stack.find(model).layers)
    decision = judge(table, found=len(attention_layers), needed=num_hidden_layers)

`complete_layer_lists` does both for a model runner, in place of its own check that every layer has
attention.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..compat import model_runner, ops, prefill_config
from . import stack

logger = logging.getLogger(__name__)

# breakable.mixers.beside_attention: what a layer that breaks at its mixer calls in its forward
_BREAKS_AT_MIXER = "beside_attention"
_STATEFUL = ("RadixAttention", "RadixLinearAttention", "MambaMixer2")
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


class Kind(str, enum.Enum):
    """What a decoder layer is, as far as the graph cares: whether it keeps state, and through which
    op it runs."""

    ATTENTION = "attention"
    INDEXER = "attention behind an indexer"
    MAMBA2 = "Mamba2"
    GDN = "gated delta net"
    MLP = "MLP"
    MOE = "MoE"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value

    @property
    def attends(self) -> bool:
        return self in (Kind.ATTENTION, Kind.INDEXER)


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    index: its place in the stack, which is its layer_id. place: the attribute that decided
    ("mixer", "self_attn", …). split_object: what the split op finds under attention_layers[index];
    None for a layer without state. experts, block: what MoE ops find under moe_layers[index] and
    moe_fusions[index]; None where there are no experts. indexer: the sparse indexer in front of the
    attention, or None.
    """

    index: int
    class_name: str
    kind: Kind
    place: str
    reason: str
    split_object: Any = None
    experts: Any = None
    block: Any = None
    indexer: Any = None

    def __str__(self) -> str:
        return f"layer {self.index} ({self.class_name}): {self.reason}"


@dataclass(frozen=True)
class LayerTable:
    """Every decoder layer in order, and the lists by layer_id that a model runner keeps."""

    rows: tuple[Layer, ...]

    @property
    def attention_layers(self) -> list[Any]:
        return [row.split_object for row in self.rows]

    @property
    def moe_layers(self) -> list[Any]:
        return [row.experts for row in self.rows]

    @property
    def moe_fusions(self) -> list[Any]:
        return [row.block for row in self.rows]

    @property
    def is_hybrid(self) -> bool:
        """Whether some layer is one that this package has an op for, or keeps everything in one
        `mixer`."""
        return any(row.place == "mixer" or row.kind in (Kind.MAMBA2, Kind.GDN) for row in self.rows)


@dataclass(frozen=True)
class Decision:
    """Whether the layers allow the graph. use_table: the table's lists replace the runner's own,
    which are incomplete."""

    allowed: bool
    reason: str
    use_table: bool = False
    offender: Layer | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a model runs without the graph. offender: the layer at fault, where it is one."""

    reason: str
    offender: Layer | None = None


def describe(layers: Iterable[Any]) -> LayerTable:
    """The table of a stack's layers. Only looks at attributes: meta tensors, stand-ins and real
    layers alike."""
    return LayerTable(tuple(_describe(index, layer) for index, layer in enumerate(layers)))


def _describe(index: int, layer: Any) -> Layer:
    kind, place, reason, split_object = _classify(layer)
    block = None
    for name in _GATES:
        if hasattr(getattr(layer, name, None), "experts"):
            block = getattr(layer, name)
    return Layer(
        index,
        type(layer).__name__,
        kind,
        place,
        reason,
        split_object,
        experts=getattr(block, "experts", None),
        block=block,
        indexer=getattr(getattr(layer, "self_attn", None), "indexer", None),
    )


def _classify(layer: Any) -> tuple[Kind, str, str, Any]:
    """Kind, deciding attribute, reason and split object. The order of attributes is that of the
    releases' own loops (ModelRunner.init_piecewise_cuda_graphs, 0.5.9), so that where they find an
    object, this finds the same."""
    for place in ("self_attn", "attn", "linear_attn", "attention", "mixer"):
        if hasattr(layer, place):
            return _PLACES[place](getattr(layer, place), layer)
    return *_without_state(layer, layer), None


def _self_attn(module: Any, layer: Any) -> tuple[Kind, str, str, Any]:
    for name in ("attn", "attn_mqa"):
        if _is_a(getattr(module, name, None), "ModuleList"):
            return (
                Kind.UNKNOWN,
                "self_attn",
                f"self_attn.{name} is a list of attentions, of which an op would know one",
                None,
            )
        if hasattr(module, name):
            kind = Kind.INDEXER if getattr(module, "indexer", None) is not None else Kind.ATTENTION
            return kind, "self_attn", f"has self_attn.{name}", getattr(module, name)
    return (
        Kind.UNKNOWN,
        "self_attn",
        f"self_attn ({_name(module)}) has neither attn nor attn_mqa",
        None,
    )


def _attn(module: Any, layer: Any) -> tuple[Kind, str, str, Any]:
    return Kind.ATTENTION, "attn", "has attn", module


def _linear_attn(module: Any, layer: Any) -> tuple[Kind, str, str, Any]:
    if hasattr(module, "attn"):
        return Kind.GDN, "linear_attn", "has linear_attn.attn", module.attn
    return Kind.GDN, "linear_attn", "has linear_attn", module


def _attention(module: Any, layer: Any) -> tuple[Kind, str, str, Any]:
    if hasattr(module, "attn"):
        return Kind.ATTENTION, "attention", "has attention.attn", module.attn
    return Kind.UNKNOWN, "attention", f"attention ({_name(module)}) has no attn", None


def _mixer(module: Any, layer: Any) -> tuple[Kind, str, str, Any]:
    if hasattr(module, "attn"):
        return Kind.ATTENTION, "mixer", "has mixer.attn", module.attn
    if _is_a(module, "MambaMixer2"):
        return Kind.MAMBA2, "mixer", "its mixer is a MambaMixer2", layer
    kind, _, reason = _without_state(module, layer)
    stranger = _stranger(layer, {"mixer"})
    if kind is not Kind.UNKNOWN and stranger:
        return Kind.UNKNOWN, "mixer", f"beside its mixer, {stranger}", None
    return kind, "mixer", f"its mixer ({_name(module)}) {reason}", None


_PLACES = {
    "self_attn": _self_attn,
    "attn": _attn,
    "linear_attn": _linear_attn,
    "attention": _attention,
    "mixer": _mixer,
}


def _without_state(module: Any, layer: Any) -> tuple[Kind, str, str]:
    """MLP or MoE, if it is known to be one and everything inside to keep no state; else UNKNOWN.
    `place` is always "".

    module: the layer itself, or its mixer.
    """
    keeper = next(
        (_name(part) for part in _parts(module) if any(_is_a(part, name) for name in _STATEFUL)),
        None,
    )
    if keeper:
        return Kind.UNKNOWN, "", f"keeps state in a {keeper} that no split op is known for"
    blocks = [getattr(module, name) for name in _BLOCKS if hasattr(module, name)]
    parts, known = [module, *blocks], _INSIDE.union(_BLOCKS)
    if not any(hasattr(part, "experts") or hasattr(part, "down_proj") for part in parts):
        return Kind.UNKNOWN, "", "has no attention and is no known MLP or MoE"
    if stranger := next(filter(None, (_stranger(part, known) for part in parts)), None):
        return Kind.UNKNOWN, "", stranger
    if any(hasattr(part, "experts") for part in parts):
        return Kind.MOE, "", "has experts and keeps no state"
    return Kind.MLP, "", "is an MLP and keeps no state"


def _stranger(module: Any, known: set[str]) -> str | None:
    """The first child of `module` that is neither of the `known` names nor a norm, in words; None
    where all are."""
    children = module.named_children() if callable(getattr(module, "named_children", None)) else ()
    for name, child in children:
        if name not in known and "norm" not in f"{name} {_name(child)}".lower():
            return f"holds {name} ({_name(child)}), of which nobody knows whether it keeps state"
    return None


def _is_a(module: Any, class_name: str) -> bool:
    """By the names of its classes: importing them all would pull in kernels that the model does not
    use."""
    return any(base.__name__ == class_name for base in type(module).__mro__)


def _name(module: Any) -> str:
    return type(module).__name__


def judge(table: LayerTable, found: int, needed: int) -> Decision:
    """Whether the graph may be captured.

    found: how many attention objects the release's own loop collected. needed: the model's
    num_hidden_layers. A release that found them all decided already. Otherwise only models with
    layers of this package's kinds get its table; every other one stays off as the release has it,
    and the first layer at fault is named.
    """
    if found >= needed:
        return Decision(True, f"all {needed} layers have attention")
    rows = table.rows
    if len(rows) < needed:
        return Decision(
            False, f"the model has {len(rows)} decoder layers, its configuration says {needed}"
        )
    unknown = next((row for row in rows if row.kind is Kind.UNKNOWN), None)
    if unknown:
        return Decision(False, str(unknown), offender=unknown)
    net = next((row for row in rows if row.kind is Kind.GDN), None)
    if net and not ops.splits_at_linear_attention():
        return Decision(False, f"{net}; this release has no split op for it", offender=net)
    if not any(row.kind.attends for row in rows):
        return Decision(
            False, f"no attention layer among {len(rows)}; first is {rows[0]}", offender=rows[0]
        )
    if not table.is_hybrid:
        missing = next((row for row in rows if row.split_object is None), None)
        what = (
            str(missing)
            if missing
            else f"this release collects attention for {found} of {needed} layers"
        )
        return Decision(False, what, offender=missing)
    moved = next((row for row in rows if _layer_id(row) not in (None, row.index)), None)
    if moved:
        return Decision(
            False,
            f"layer {moved.index} ({moved.class_name}) calls itself layer {_layer_id(moved)}",
            offender=moved,
        )
    return Decision(
        True,
        f"{len(rows)} layers known, {sum(row.split_object is not None for row in rows)} with state",
        use_table=True,
    )


def outside_breaks(layers: Iterable[Any]) -> Layer | None:
    """The first layer that keeps state which no break covers, or None.

    Captured, such a layer would go on with the state slots and lengths of the batch of the capture.
    """
    for row, layer in zip(describe(layers).rows, layers):
        if row.kind is Kind.UNKNOWN:
            return row
        if breaks_at_mixer(layer):
            continue
        covered = (
            set() if row.split_object is None else {id(part) for part in _parts(row.split_object)}
        )
        inside = [
            part for part in _parts(layer) if _is_a(part, "MambaMixer2") and id(part) not in covered
        ]
        if inside:
            return dataclasses.replace(
                row, reason=f"calls a {_name(inside[0])} outside of every break"
            )
    return None


def breaks_at_mixer(layer: Any) -> bool:
    """Whether a layer makes its own break of the breakable graph round its Mamba2 mixer, as
    Falcon-H1's do (models/falcon_h1.py). A class that overrides such a forward does not."""
    code = getattr(getattr(type(layer), "forward", None), "__code__", None)
    return _BREAKS_AT_MIXER in getattr(code, "co_names", ())


def uncovered_mixer(runner: Any) -> Layer | None:
    """The first layer whose Mamba2 mixer no split op covers, or None: torch.compile would trace it
    with the batch of the trace.

    runner: ModelRunner, up to 0.5.13, with the objects of split ops in attention_layers. Other
    kinds of state are its own rules' affair. Raises NoStack.
    """
    layers = stack.find(runner.model).layers
    found = _first_uncovered(enumerate(layers), runner.attention_layers)
    if found is None:
        return None
    why = (
        "runs a Mamba2 mixer outside of every split op: captured, it would go on with the state"
        " slots of one batch"
    )
    return dataclasses.replace(_describe(*found), reason=why)


def _first_uncovered(
    layers: Iterable[tuple[int, Any]], breaks: Iterable[Any]
) -> tuple[int, Any] | None:
    """The first of numbered `layers` with a Mamba2 mixer that lies in none of `breaks`."""
    covered = {id(part) for module in breaks if module is not None for part in _parts(module)}
    uncovered = (
        pair
        for pair in layers
        if any(_is_a(part, "MambaMixer2") and id(part) not in covered for part in _parts(pair[1]))
    )
    return next(uncovered, None)


def captures_mixer(runner: Any, owner: Any) -> bool:
    """Whether the graph would capture a Mamba2 mixer with the state slots of one batch. Then the
    first rank has logged why not.

    Called from 0.5.14 on, where a release makes its breaks itself. owner: the layer stack. A mixer
    must lie inside of what the release breaks at, or its layer breaks at it, which the breakable
    graph alone sees. Layers by name, and those that other ranks hold, are looked at too.
    """
    layers = owner.layers.values() if hasattr(owner.layers, "values") else owner.layers
    breakable = prefill_config.prefill(runner.server_args).backend == "breakable"
    asked = (pair for pair in enumerate(layers) if not (breakable and breaks_at_mixer(pair[1])))
    found = _first_uncovered(asked, model_runner.attention_layers(runner, owner))
    if found is None:
        return False
    reason = (
        f"decoder layer {found[0]} ({_name(found[1])}) runs a Mamba2 mixer outside of every graph"
        " break: captured, it would go on with the state slots of the batch that was captured"
    )
    model_runner.refused(runner, reason)
    if model_runner.is_first_rank(runner):
        logger.warning("Disable prefill CUDA graph because %s.", reason)
    return True


def lacks_break(runner: Any, owner: Any, backend: str) -> bool:
    """Whether a layer of this rank cannot be captured, where the release counted too few with
    attention (from 0.5.19 on). Then the first of the ranks that hold it has logged which.

    owner: the layer stack. A layer that keeps state runs between captured pieces: the runner lists
    what it breaks at. A `mixer` that is an MLP or MoE block keeps none, and the breakable graph
    captures it as it is.
    """
    known = dict(
        enumerate(owner.layers.values() if hasattr(owner.layers, "values") else owner.layers)
    )
    for index in range(runner.layer_info.start_layer, runner.layer_info.end_layer):
        if index < len(runner.attention_layers) and runner.attention_layers[index] is not None:
            continue
        mixer = getattr(known.get(index), "mixer", None)
        stateless = hasattr(mixer, "experts") or hasattr(mixer, "down_proj")
        if stateless and backend == "breakable":
            continue
        kind = _name(known[index]) if index in known else "missing"
        what = (
            f"no attention, which the {backend} graph needs in every layer"
            if stateless
            else "no attention to break at and is no MLP or MoE block"
        )
        reason = f"decoder layer {index} ({kind}) has {what}"
        model_runner.refused(runner, reason)
        if model_runner.leads_its_layers(runner):
            logger.warning("Disable prefill CUDA graph because %s.", reason)
        return True
    return False


def _parts(module: Any) -> Iterable[Any]:
    return module.modules() if callable(getattr(module, "modules", None)) else ()


def _layer_id(row: Layer) -> int | None:
    """The number under which ops will look this layer up."""
    return getattr(
        row.split_object if row.split_object is not None else row.experts, "layer_id", None
    )


def complete_layer_lists(runner: Any) -> bool:
    """Bring a model runner's layer lists to one entry per decoder layer; whether the graph may be
    captured.

    runner: ModelRunner after its own loop: attention_layers, where the release has them moe_layers
    and moe_fusions, model, model_config.num_hidden_layers. Lists that are complete are left alone.
    When the answer is no, the first rank logs one warning that names the first layer at fault.
    """
    needed, found = runner.model_config.num_hidden_layers, len(runner.attention_layers)
    if found >= needed:
        return True
    try:
        table = describe(stack.find(runner.model).layers)
        decision = judge(table, found, needed)
    except stack.NoStack as error:
        decision = Decision(False, str(error))
    if decision.use_table:
        runner.attention_layers = table.attention_layers
        for name in model_runner.layer_lists(runner):
            setattr(runner, name, getattr(table, name))
    if not decision.allowed and model_runner.is_first_rank(runner):
        logger.warning("Prefill runs without a CUDA graph: %s", decision.reason)
    return decision.allowed
