"""Weights that come in two parts, where an update brings one part alone.

Loaders of MLA join `q_a_proj` and `kv_a_proj_with_mqa` to one parameter, and an indexer's fp8
weight and its scale to one in bfloat16. They wait for the second part within one call of
`load_weights`, and drop the first where the call ends (sglang#38298), as a trainer's bucket does.

Here a call that ends with one part gets the other. Of a projection that is what the parameter
holds. An indexer's parameter holds the product, so its last parted weight and scale are kept: 1 MB
a layer.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

logger = logging.getLogger(__name__)
QUERIES, KEYS = "q_a_proj", "kv_a_proj_with_mqa"
JOINED = "fused_qkv_a_proj_with_mqa"
INDEXER = re.compile(r"\.indexer\.(?:wk|weights_proj)\.(weight|weight_scale_inv|weight_scale)$")
INDEXER_JOINED = ".indexer.wk_weights_proj.weight"
LAYER = re.compile(r"(?:^|\.)layers\.\d+\.")
WIDE = torch.float32, torch.bfloat16, torch.float16  # torch.cat takes them beside each other

Named = tuple[str, torch.Tensor]
Parted = dict[str, dict[str, Named]]  # by the whole's name: the parts that came, by theirs


def complete(model: Any) -> None:
    """From here on `model.load_weights` completes what a call brings in part. A model that joins no
    parts is left as it is."""
    names = [name for name, _ in model.named_parameters()]
    if not any(JOINED in name or name.endswith(INDEXER_JOINED) for name in names):
        return
    load, kept = model.load_weights, {}

    @functools.wraps(load)
    def load_completed(weights: Iterable[Named], *words: Any, **named: Any) -> Any:
        return load(completed(model, weights, kept), *words, **named)

    model.load_weights = load_completed


def completed(model: Any, weights: Iterable[Named], kept: Parted) -> Iterator[Named]:
    """The tensors of one call, then the other part of each that came alone.

    kept: an indexer's parts of earlier calls; those of this call are added.
    """
    parted: Parted = {}
    for name, weight in weights:
        if found := part_of(name, weight):
            whole, part = found
            parts = parted.setdefault(whole, {})
            parts[part] = name, weight
            if len(parts) == 2:
                del parted[whole]
                kept.pop(whole, None)
        yield name, weight
    if parted:
        yield from _others(dict(model.named_parameters()), parted, kept)


def part_of(name: str, weight: torch.Tensor) -> tuple[str, str] | None:
    """(the name of the whole, which part of it a tensor of a checkpoint is), or None: it is a
    whole."""
    for part in (QUERIES, KEYS):
        if part in name:
            return name.replace(part, JOINED), part
    if found := INDEXER.search(name):
        scale = found[1] != "weight"
        if scale or weight.dtype == torch.float8_e4m3fn:  # others are whole
            return name[: found.start(1)], "scale" if scale else "weight"
    return None


def _others(parameters: dict[str, Any], parted: Parted, kept: Parted) -> Iterator[Named]:
    """The part that each of `parted` lacks. What belongs to another rank has no parameter here."""
    for whole, parts in parted.items():
        ((part, (name, weight)),) = parts.items()
        if part in (QUERIES, KEYS):
            parameter = _find(parameters, whole)
            if parameter is None or (weight.ndim == 0 and part == KEYS):
                continue  # of two scales for all of a tensor, loaders take the first
            other = rest(parameter, weight, first=part == QUERIES)
            if other is None:
                logger.warning("%s came without its other half, and is left out", name)
            else:
                yield name.replace(part, KEYS if part == QUERIES else QUERIES), other
        else:
            both = kept.setdefault(whole, {})
            both[part] = name, weight.clone()
            yield from (one for named, one in both.items() if named != part)


def _find(parameters: dict[str, Any], name: str) -> torch.Tensor | None:
    """The parameter of a checkpoint's name. Models may have it below another prefix, and drafts
    have one layer without a number."""
    if name in parameters or not (layer := LAYER.search(name)):
        return parameters.get(name)
    numbered, bare = name[layer.start() :].lstrip("."), name[layer.end() :]
    for known, parameter in parameters.items():
        if known.endswith("." + numbered):
            return parameter
        if known.endswith("." + bare) and not LAYER.search(known):
            return parameter
    return None


def rest(parameter: torch.Tensor, half: torch.Tensor, first: bool) -> torch.Tensor | None:
    """What a joined parameter holds beside `half`, on the device of `half`; None where its layout
    is not the checkpoint's.

    first: `half` comes before the rest, along the one dimension in which the two differ.
    """
    if half.ndim == 0:
        return half
    if half.ndim != parameter.ndim or not _same_kind(half.dtype, parameter.dtype):
        return None
    sizes = list(zip(half.shape, parameter.shape))
    along = [number for number, (part, whole) in enumerate(sizes) if part != whole]
    if len(along) != 1 or sizes[along[0]][0] > sizes[along[0]][1]:
        return None
    (dim,), (part, whole) = along, sizes[along[0]]
    start = part if first else 0
    return parameter.detach().narrow(dim, start, whole - part).to(half.device)


def _same_kind(one: torch.dtype, other: torch.dtype) -> bool:
    return one == other or (one in WIDE and other in WIDE)
