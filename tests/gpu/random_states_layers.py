"""One Mamba2 layer and one gated delta net without their projections, for random_states.py: as the
queue captures them, as the release runs them eagerly, decoding, and in float64.

The projections are left out, since products of matrices may have other bits for other numbers of
rows. A layer's input here is what its first projection gives. Everything between the projections is
the tree's own code: MambaMixer2.forward and GDNAttnBackend run on stand-ins for their objects.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import scan_answers
import torch
import torch.nn.functional as F
from sweep import NANO_2, TINY, Layer

Tensor = torch.Tensor
WIDTH = 4  # inputs that a convolution sums


@dataclass(frozen=True)
class Limits:
    """How far results may be apart: in the mean and at worst, as scan_answers.Apart says. states:
    at worst, of a state beside the formula."""

    mean: float
    worst: float
    # A state sums few products where a request is short, and its largest numbers are many times
    # its root mean square: at worst its limit is wide, and the mean is what finds a wrong one. On
    # an H100 10 of 66 states were 0.25 to 0.68 off at worst, 0.0019 in the mean, the release's
    # scan and the queue's at most 0.27 from each other. So the release's are beyond 0.25 too.
    states: float = 1.0

    def times(self, factor: int) -> tuple[float, float]:
        return self.mean * factor, self.worst * factor


# The scan's own limit in the mean, for the same kernels on the same kind of numbers. One head of
# 128 that is wrong is about nine times as far off. At worst twice the scan's: a convolution comes
# before it, and where its rounded products nearly cancel, both roundings add up.
SCAN = Limits(scan_answers.MEAN, 2 * scan_answers.WORST)
# The delta rule subtracts what a state knows already, and solves each chunk for it in 16 bits: a
# row's roundings go on into the rows behind it. So it may be twice as far from the formula.
DELTA = Limits(*SCAN.times(2))


@dataclass(frozen=True)
class Pool:
    """A layer's states. conv: (slots, features, 3), ssm: (slots, heads, …)."""

    conv: Tensor
    ssm: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return self.conv, self.ssm

    def clone(self) -> Pool:
        return Pool(self.conv.clone(), self.ssm.clone())

    def copy_(self, other: Pool) -> Pool:
        for mine, theirs in zip(self.parts, other.parts):
            mine.copy_(theirs)
        return self


def cache(pool: Pool) -> Any:
    """As the release's pool has a layer's states."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    return MambaPool.State(conv=[pool.conv], temporal=pool.ssm)


def _described(batch: Any, **more: Any) -> dict[str, Any]:
    """What a release's ForwardMetadata says of a ForwardBatch."""
    lengths = batch.extend_seq_lens
    starts = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return dict(query_start_loc=starts, mamba_cache_indices=batch.req_pool_indices.int()) | more


def _decoding(slots: Tensor) -> dict[str, Any]:
    starts = torch.arange(len(slots) + 1, dtype=torch.int32, device=slots.device)
    return dict(query_start_loc=starts, mamba_cache_indices=slots.int())


def convolved(rows: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Depthwise, then SiLU, in float64. Products and the result are rounded as every kernel does
    that, in prefills and decoding. rows: (rows, features), window: (features, 3)."""
    history = torch.cat([window.T, rows])
    sums = sum((history[k : k + len(rows)] * weight[:, k]).double() for k in range(WIDTH))
    return F.silu(sums if bias is None else sums + bias.double()).to(rows.dtype).double()


class Mamba2:
    """Nemotron-Nano-9B-v2's layer. Rows of input: a gate that nothing reads, x, b and c, and dt."""

    name, limits, chunk, releases_own = "mamba2", SCAN, None, True

    def __init__(self, device: str, tiny: bool = False) -> None:
        from sglang.srt.layers.attention.mamba import causal_conv1d_triton, mamba
        from sglang.srt.layers.attention.mamba.ops import (
            initialize_mamba_selective_state_update_backend,
        )

        # Without a GPU the release's module imports no kernels.
        vars(mamba).setdefault("causal_conv1d_fn_triton", causal_conv1d_triton.causal_conv1d_fn)
        vars(mamba).setdefault(
            "causal_conv1d_update_triton", causal_conv1d_triton.causal_conv1d_update
        )
        initialize_mamba_selective_state_update_backend(SimpleNamespace(mamba_backend="triton"))
        self.device, self.forward = device, mamba.MambaMixer2.forward
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.layer: Layer = TINY[0] if tiny else NANO_2
        self.mixer = self._mixer()
        self.step = self.layer.chunk

    def _mixer(self) -> Any:
        """What MambaMixer2.forward and the queue's captured layer read of their mixer."""
        layer, device = self.layer, self.device
        self.inner, self.shared = layer.heads * layer.size, layer.groups * layer.d_state
        self.features = self.inner + 2 * self.shared
        self.width = self.inner + self.features + layer.heads
        weight = 0.5 * torch.randn(self.features, 1, WIDTH, device=device, dtype=self.dtype)
        bias = 0.1 * torch.randn(self.features, device=device, dtype=self.dtype)
        heads = {"A": -1.0, "D": 1.0, "dt_bias": 1.0}  # as scan_answers draws them
        return SimpleNamespace(
            **{name: sign * torch.rand(layer.heads, device=device) for name, sign in heads.items()},
            conv1d=SimpleNamespace(weight=weight, bias=bias),
            activation="silu",
            tp_size=1,
            num_heads=layer.heads,
            head_dim=layer.size,
            n_groups=layer.groups,
            ssm_state_size=layer.d_state,
            groups_ssm_state_size=self.shared,
            intermediate_size=self.inner,
            conv_dim=self.features,
            in_proj=lambda rows: (rows, None),
            norm=lambda rows, gate: rows,
            out_proj=lambda rows: (rows, None),
        )

    def pool(self, slots: int) -> Pool:
        layer = self.layer
        conv = torch.zeros(slots, self.features, WIDTH - 1, device=self.device, dtype=self.dtype)
        shape = slots, layer.heads, layer.size, layer.d_state
        return Pool(conv, torch.zeros(shape, device=self.device))

    def rows(self, count: int) -> Tensor:
        made = torch.randn(count, self.width, device=self.device, dtype=self.dtype)
        made[:, -self.layer.heads :] -= 3  # steps of a length that trained models have
        return made

    def state(self) -> Tensor:
        """A slot's, behind a prefix."""
        layer = self.layer
        return torch.randn(layer.heads, layer.size, layer.d_state, device=self.device)

    def mixed(self, rows: Tensor) -> Tensor:
        """What the convolution reads."""
        return rows[:, self.inner : self.inner + self.features]

    def why_not(self, pool: Pool) -> str | None:
        from sglang.srt.prefill_graph.captured import mamba2

        return mamba2.why_not(self.mixer, cache(pool), self.dtype)

    def captured(self, pool: Pool, tables: Any, rows: Tensor) -> Tensor:
        from sglang.srt.prefill_graph.captured import mamba2

        return mamba2.run(self.mixer, cache(pool), tables, rows)

    def eager(self, pool: Pool, batch: Any, rows: Tensor, wanted: Any = None) -> Tensor:
        """The patched release's prefill. wanted: tracked_states.WantedStates."""
        from sglang.srt.layers.attention.mamba import mamba2_metadata as release

        described = release.ForwardMetadata(**_described(batch))
        size = self.layer.chunk
        metadata = release.Mamba2Metadata.prepare_mixed(described, size, batch)
        metadata.wanted_states = wanted
        return self._forward(pool, metadata, rows)

    def release(self, pool: Pool, batch: Any, rows: Tensor) -> Tensor:
        """The same with the release's scan. It keeps no states behind part of a request."""
        with _environment("SGLANG_MAMBA2_SCAN", "release"):
            return self.eager(pool, batch, rows)

    def decode(self, pool: Pool, slots: Tensor, rows: Tensor) -> Tensor:
        from sglang.srt.layers.attention.mamba import mamba2_metadata as release

        described = release.ForwardMetadata(**_decoding(slots))
        words = dict(is_target_verify=False, draft_token_num=1)
        metadata = release.Mamba2Metadata.prepare_decode(described, slots, **words)
        return self._forward(pool, metadata, rows)

    def _forward(self, pool: Pool, metadata: Any, rows: Tensor) -> Tensor:
        output = rows.new_empty(len(rows), self.inner)
        words = dict(hidden_states=rows, output=output, layer_cache=cache(pool), metadata=metadata)
        self.forward(self.mixer, **words, use_triton_causal_conv=True)  # as NemotronH's layers say
        return output

    def formula(self, rows: Tensor, window: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One request in float64: its output, and the state behind it."""
        mixer, mixed = self.mixer, self.mixed(rows)
        made = convolved(mixed, window, mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias)
        parts = made.split([self.inner, self.shared, self.shared], -1)
        inputs = dict(a=mixer.A, d=mixer.D, dt_bias=mixer.dt_bias)
        dt = rows[:, -self.layer.heads :].double()
        given = dict(zip("xbc", parts)) | {"dt": dt}
        return scan_answers.request(self.layer, given, inputs, state.double(), 0)[:2]


class GatedDelta:
    """Qwen3-Next's layer. Rows of input: queries, keys, values, a and b."""

    name, limits, releases_own = "gdn", DELTA, False
    step = None  # servers whose prefix cache keeps states of prefills do not capture this layer

    def __init__(self, device: str, tiny: bool = False) -> None:
        from sglang.srt.layers.attention.linear import gdn_backend
        from sglang.srt.prefill_graph.captured import gdn

        self.device, self.dtype = device, torch.float16 if tiny else torch.bfloat16
        self.chunk = gdn.CHUNK
        self.keys, self.values, self.size = (2, 4, 16) if tiny else (16, 32, 128)
        self.features = (2 * self.keys + self.values) * self.size
        self.width = self.features + 2 * self.values
        self.net = self._net()
        self.backend = gdn_backend.GDNAttnBackend.__new__(gdn_backend.GDNAttnBackend)
        triton = gdn_backend.LinearAttnKernelBackend("triton")
        self.backend.kernel_dispatcher = gdn_backend.GDNKernelDispatcher(triton, triton)

    def _net(self) -> Any:
        """What both read of a RadixLinearAttention."""
        heads = dict(num_q_heads=self.keys, num_k_heads=self.keys, num_v_heads=self.values)
        sizes = {f"head_{part}_dim": self.size for part in "qkv"}
        own = dict(device=self.device, dtype=self.dtype)
        return SimpleNamespace(
            layer_id=0,
            **heads,
            **sizes,
            q_dim=self.keys * self.size,
            k_dim=self.keys * self.size,
            v_dim=self.values * self.size,
            conv_weights=0.5 * torch.randn(self.features, WIDTH, **own),
            bias=None,
            activation="silu",
            A_log=torch.rand(self.values, device=self.device).clamp(min=0.01).log(),
            dt_bias=torch.rand(self.values, device=self.device),
        )

    def pool(self, slots: int) -> Pool:
        conv = torch.zeros(slots, self.features, WIDTH - 1, device=self.device, dtype=self.dtype)
        shape = slots, self.values, self.size, self.size
        return Pool(conv, torch.zeros(shape, device=self.device))

    def rows(self, count: int) -> Tensor:
        return torch.randn(count, self.width, device=self.device, dtype=self.dtype)

    def state(self) -> Tensor:
        return 0.1 * torch.randn(self.values, self.size, self.size, device=self.device)

    def mixed(self, rows: Tensor) -> Tensor:
        return rows[:, : self.features]

    def _given(self, rows: Tensor) -> dict[str, Tensor]:
        _, a, b = rows.split([self.features, self.values, self.values], -1)
        return dict(mixed_qkv=self.mixed(rows), a=a.contiguous(), b=b.contiguous())

    def why_not(self, pool: Pool) -> str | None:
        from sglang.srt.prefill_graph.captured import gdn

        return gdn.why_not(self.net, cache(pool), self.dtype)

    def captured(self, pool: Pool, tables: Any, rows: Tensor) -> Tensor:
        from sglang.srt.prefill_graph.captured import gdn

        return gdn.run(self.net, cache(pool), tables, **self._given(rows))[0].flatten(1)

    def eager(self, pool: Pool, batch: Any, rows: Tensor, wanted: Any = None) -> Tensor:
        """The release's own kernels, which the captured layer launches too."""
        self._stand_on(pool, _described(batch))
        made = self.backend.forward_extend(self.net, batch, **self._given(rows))
        return made[0].flatten(1)

    def decode(self, pool: Pool, slots: Tensor, rows: Tensor) -> Tensor:
        self._stand_on(pool, _decoding(slots))
        batch = SimpleNamespace(batch_size=len(slots), mamba_track_mask=None)
        made = self.backend.forward_decode(self.net, batch, **self._given(rows))
        return made[0].flatten(1)

    def _stand_on(self, pool: Pool, described: dict[str, Any]) -> None:
        from sglang.srt.layers.attention.mamba import mamba2_metadata as release

        kept = cache(pool)
        self.backend.req_to_token_pool = SimpleNamespace(mamba2_layer_cache=lambda layer: kept)
        self.backend.forward_metadata = release.ForwardMetadata(**described)

    def formula(self, rows: Tensor, window: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Yang, Kautz and Hatamizadeh (arXiv 2412.06464), one step for each token. state: [heads,
        value, key]."""
        net, ratio = self.net, self.values // self.keys
        made = convolved(self.mixed(rows), window, net.conv_weights, None)
        q, k, v = (
            part.unflatten(-1, (-1, self.size))
            for part in made.split([net.q_dim, net.k_dim, net.v_dim], -1)
        )
        q, k = (F.normalize(part, dim=-1).repeat_interleave(ratio, 1) for part in (q, k))
        a, b = rows[:, self.features :].double().split([self.values, self.values], -1)
        decay = (-net.A_log.double().exp() * F.softplus(a + net.dt_bias.double())).exp()
        state, beta, outputs = state.double(), b.sigmoid(), []
        for t in range(len(rows)):
            state = state * decay[t, :, None, None]
            missing = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
            state = state + missing[..., None] * k[t, :, None]
            outputs.append(torch.einsum("hvk,hk->hv", state, q[t]) * self.size**-0.5)
        return torch.stack(outputs).flatten(1), state


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


LAYERS = {layer.name: layer for layer in (Mamba2, GatedDelta)}
