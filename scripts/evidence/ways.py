"""What all gains say together: each tree of a release in each way of prefilling, timed once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from . import gains
from .benches import EAGER
from .gains import PATCHED, Spread
from .records import USUAL_ATTENTION, Gain, Peer

USUAL_GPU = "NVIDIA H200"  # most gains are of one
ALONE = "1x"  # begins a shape of one request
ASKED = "graph+states"  # SGLANG_PREFILL_GRAPH_STATES asked for them
PIECEWISE = "piecewise"  # begins the name of a mode in that graph
WAYS = (EAGER, PIECEWISE, "graph", ASKED)
# Kinds of kernels, as a plot shows them: what a group of a profile is called, first match wins.
KINDS = (
    ("matrix products", r"^matrix products$"),
    ("experts", r"moe|expert|topk|router"),
    ("Mamba2's scan", r"_(chunk|bmm_chunk|state)_\w*fwd_kernel|^_(scan|states|steps)_kernel"
     r"|_chunk_state_varlen"),
    ("gated delta rule", r"gated_delta|chunk_fwd_kernel_o|recompute_w_u|chunk_scaled_dot"
     r"|solve_tril|merge_16x16|gdn|chunk_local_cumsum|l2norm|^_begin_kernel|fused_qkvzba"),
    ("convolution", r"conv"),
    ("attention", r"^attention$|rope|kvcache|Rotary|reshape_and_cache"),
    ("norms and activations", r"norm|relu|silu|act_kernel|act_and_mul|sigmoid_mul"),
    ("copies and element-wise", r"PyTorch|copies|copy|memcpy"),
)  # fmt: skip
OTHER = "other"


def short(model: str) -> str:
    """A model's name where there is little room: "NVIDIA-X, 12 of its 48 layers" -> "X, 12 of 48
    layers"."""
    return model.removeprefix("NVIDIA-").replace(" of its ", " of ")


@dataclass(frozen=True)
class Timed:
    """A tree of a release, as one gain timed it. way: how it prefilled, of WAYS."""

    tree: str
    way: str
    gain: Gain

    @property
    def name(self) -> str:
        return f"{self.tree}, {self.way}"

    def calls(self, shape: str) -> Spread | None:
        """First tokens of a shape."""
        return gains.calls(self.gain, self.tree, shape)

    def kinds(self, shape: str) -> dict[str, float]:
        """Milliseconds of one call by kind of kernel, in the order of KINDS."""
        return kinds(gains.groups(self.gain, self.tree, shape))


# (model, release) -> its trees, the untouched one first, in the order of WAYS. The model of most
# releases comes first, and its oldest release; a release with another attention counts apart.
Table = dict[tuple[str, str], list[Timed]]


def timed(found: Iterable[Gain]) -> Table:
    """Of several gains of one tree in one way the one with most shapes of one request counts, then
    the latest."""
    best: dict[tuple[str, str, str, str], Gain] = {}
    for gain in sorted(found, key=lambda one: (len(alone(one)), one.date)):
        if not gain.gain.traffic:
            for run in gain.runs:
                if any(gains.calls(gain, run.tree, shape) for shape in gain.gain.shapes):
                    best[gain.model, release(gain), run.tree, way_of(gain, run.tree)] = gain
    models = [model for model, _ in {key[:2] for key in best}]

    def place(key: tuple[str, str, str, str]) -> tuple[int, str, Version, bool, int]:
        model, name, tree, way = key
        of_way = tree == PATCHED, WAYS.index(way)
        return -models.count(model), model, Version(name.partition(",")[0]), *of_way

    table: Table = {}
    for model, name, tree, way in sorted(best, key=place):
        one = Timed(tree, way, best[model, name, tree, way])
        table.setdefault((model, name), []).append(one)
    return table


def release(gain: Gain) -> str:
    """A release where there is little room: "0.5.13.post1", or "0.5.13.post1, FA3, H100" where
    attention was FlashAttention 3's and the GPU is not the usual one."""
    attention = "" if gain.attention == USUAL_ATTENTION else gain.attention.upper()
    gpu = "" if gain.gpu.name == USUAL_GPU else _shorter(gain.gpu.name)
    return ", ".join(filter(None, (gain.version, attention, gpu)))


def _shorter(gpu: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "H100"."""
    return next(iter(gpu.removeprefix("NVIDIA ").split()), gpu)


def way_of(gain: Gain, tree: str) -> str:
    """How a tree prefilled in a gain."""
    mode = gains.runs(gain, tree)[0].mode
    if mode == EAGER:
        return EAGER
    if mode.startswith(PIECEWISE):
        return PIECEWISE
    return ASKED if tree == PATCHED and gains.states(gain) else "graph"


def peers(trees: Iterable[Timed]) -> dict[str, tuple[Peer, Gain]]:
    """Title -> the peer that was timed beside any of these trees, and in which gain."""
    return {peer.title: (peer, one.gain) for one in trees for peer in one.gain.peers}


def alone(gain: Gain) -> list[tuple[int, str]]:
    """Tokens and name of each shape of one request, ascending."""
    shapes = (shape for shape in gain.gain.shapes if shape.startswith(ALONE))
    return sorted((int(shape.removeprefix(ALONE)), shape) for shape in shapes)


def kinds(groups: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds by kind of kernel, in the order of KINDS, of those by a profile's groups."""
    found = dict.fromkeys([*(name for name, _ in KINDS), OTHER], 0.0)
    for group, spent in groups.items():
        found[kind(group)] += spent
    return found


def kind(group: str) -> str:
    """The kind of a profile's group of kernels."""
    return next((name for name, pattern in KINDS if re.search(pattern, group)), OTHER)
