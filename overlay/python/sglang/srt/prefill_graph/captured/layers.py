"""Which layers with recurrent states a graph captures, and what runs in place of their breaks."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..compat import delta_rule, model_runner, ops
from ..kernels import tiles, tracked_states
from ..model.layers import breaks_at_mixer
from . import mamba2, tables

logger = logging.getLogger(__name__)
Into = Callable[[torch.Tensor, torch.Tensor], Any]
_warn = functools.lru_cache(logger.warning)  # once, not for each runner and rank's question
SWITCH = tiles.SWITCH  # in the environment, one of:
VALUES = {
    "": "Mamba2 layers and gated delta nets are captured",
    "all": "as capture",
    "break": "layers with recurrent states run between the captured pieces",
    "capture": "the same, with Mamba2 layers on GPUs where nothing was measured",
}
# set on the ForwardBatch of a capture: the tables.Current that its layers read
CAPTURED_INTO = "captured_into"
NET = "RadixLinearAttention"


@dataclass(frozen=True)
class Captured:
    """The captured layers with recurrent states of a model. pool: HybridReqToTokenPool. step: of
    how many tokens a multiple the prefix cache keeps states of a prefill for. chunk: rows of a
    chunk. prefill: FlashInfer's delta rule, where that runs the nets."""

    pool: Any
    step: int | None = None
    chunk: int | None = None
    prefill: Callable[..., Any] | None = None
    made: dict[int, tables.Tables] = field(default_factory=dict, compare=False)

    def states(self, layer_id: int) -> Any:
        """A layer's part of the pool."""
        return self.pool.mamba2_layer_cache(layer_id)

    def tables(self, tokens: int, device: Any) -> tables.Tables:
        """The tables of a graph of `tokens` rows: requests that fit its rows have places there."""
        places = min(tokens, tables.MOST_REQUESTS)
        sizes = tokens, places, self.chunk or tiles.CHUNK, torch.device(device)
        if self.prefill:
            from . import flashinfer_rule

            return flashinfer_rule.Sequences(self.prefill, self.step, *sizes)
        return tables.Tables(*sizes, tracks=self.step is not None)

    def describe(self, made: tables.Tables, forward_batch: Any) -> None:
        """Fill tables for a batch. In a mixed one a request that decodes has one row, behind its
        prefix."""
        given = forward_batch.extend_seq_lens_cpu, forward_batch.extend_prefix_lens_cpu
        lengths, prefixes = (list(map(int, lengths)) for lengths in given)
        slots = ops.state_slots(self.pool, forward_batch.req_pool_indices)
        made.fill(lengths, [prefix > 0 for prefix in prefixes], slots)
        self.track(made, forward_batch)

    def placeholder(self, size: int, device: Any) -> tables.Tables:
        """The tables of a size of the piecewise graph, with the batch of its capture: one request,
        whose state is in the slot that no request owns."""
        self.made[size] = made = self.made.get(size) or self.tables(size, device)
        made.slots.zero_()
        made.fill([size], [False], made.slots)
        if made.plan.track_rows is not None:
            made.track(made.slots[:0], made.slots[:0])
        return made

    def describe_smallest(self, forward_batch: Any) -> None:
        """Fill the tables of the smallest size with room for a batch."""
        size = min(size for size in self.made if size >= len(forward_batch.input_ids))
        self.describe(self.made[size], forward_batch)

    def track(self, made: tables.Tables, forward_batch: Any) -> None:
        """Have the states kept that an eager prefill of the batch leaves for the prefix cache."""
        if self.step is None:
            return
        if forward_batch.mamba_track_mask is None:
            made.track(made.slots[:0], made.slots[:0])
        else:
            rows = tracked_states.rows_before(forward_batch, self.step)
            made.track(rows, ops.slots_inside(self.pool, forward_batch.mamba_track_indices))


def of(
    runner: Any, owners: dict[int, Any] | None = None, backend: Any = None
) -> Captured | str | None:
    """What a ModelRunner's graph captures of such layers, why they break, or None where there are
    none. owners, backend: the layers by layer_id, and the linear half of its attention backend,
    before the runner has them."""
    if owners is None:
        owners = dict(enumerate(getattr(runner, "attention_layers", ())))
        parts = getattr(runner, "model", torch.nn.Module()).modules()
        owners |= {part.layer_id: part for part in parts if breaks_at_mixer(part)}
    mixers = {layer: mixer for layer, owner in owners.items() if (mixer := mixer_of(owner))}
    nets = {layer: owner for layer, owner in owners.items() if type(owner).__name__ == NET}
    if not mixers and not nets:
        return None
    pool = getattr(runner, "req_to_token_pool", None)
    if not hasattr(pool, "mamba2_layer_cache"):
        return "there is no pool of states"
    if asked() == "break":
        return f"{SWITCH}=break is set"
    backend = backend or getattr(getattr(runner, "attn_backend", None), "linear_attn_backend", None)
    if nets and (reason := _no_nets(backend, bool(mixers))):
        return reason
    states = {layer: pool.mamba2_layer_cache(layer) for layer in mixers or nets}
    step = ops.mamba_cache_chunk_size() if model_runner.tracks_states(runner) else None
    chunk = mamba2.chunk(next(iter(states.values()))) if mixers else _nets_module().CHUNK
    if step and nets and not delta_rule.keeps_states():
        return "the prefix cache keeps states of each prefill"
    if step and step % chunk:
        return f"the prefix cache keeps states behind each {step} tokens, and chunks have {chunk}"
    if model_runner.fetches_states(runner):
        return "the hierarchical cache brings states layer by layer"
    why_this_not = mamba2.why_not if mixers else _nets_module().why_not
    for layer, part in (mixers or nets).items():
        if reason := why_this_not(part, states[layer], runner.dtype):
            return f"layer {layer}: {reason}"
    runner.prefill_graph_note = mamba2.note(runner.device) if mixers else None
    return Captured(pool, step, chunk, delta_rule.flashinfer_prefill(backend))


def mixer_of(owner: Any) -> Any | None:
    """A layer's Mamba2 mixer: NemotronH's, or what Falcon-H1 has beside its attention."""
    found = (getattr(owner, name, None) for name in ("mixer", "mamba"))
    return next((mixer for mixer in found if type(mixer).__name__ == "MambaMixer2"), None)


def asked() -> str:
    """What the environment asks for, one of VALUES; anything else is one warning, and unset."""
    value = os.environ.get(SWITCH, "")
    if value in VALUES:
        return value
    known = "; ".join(f"{name or 'not set'}: {meaning}" for name, meaning in VALUES.items())
    _warn(f"{SWITCH}={value} is not known, and goes for nothing. Values: {known}.")
    return ""


def _no_nets(backend: Any, mixed: bool) -> str | None:
    """Why this server's layers with linear attention have to break, or None."""
    if getattr(backend, "enable_mis", False):
        return "--enable-mis cuts prompts into items"
    if mixed:
        return "Mamba2 layers and linear attention have tables of different chunks"
    return delta_rule.other_kernels(backend)


def why_not(forward_batch: Any, captured: Captured) -> str | None:
    """Why a batch has to run eagerly where states are captured, or None."""
    if forward_batch.batch_size > tables.MOST_REQUESTS:
        return f"more requests than the tables of states have places, {tables.MOST_REQUESTS}"
    if forward_batch.forward_mode.is_target_verify():
        return "drafts are being verified"
    if captured.step is None and getattr(forward_batch, "mamba_track_mask", None) is not None:
        return "the prefix cache keeps states of the batch"
    return None


def run_captured(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], hand_over: Into = torch.Tensor.set_
) -> bool:
    """Whether a split op, by the name of its function, was run as captured launches: inside of
    tables.capturing_into, and for a batch with CAPTURED_INTO. hand_over(output, result): the
    default has `output` read the result's memory; copy_ fills it."""
    run = RUN.get(op)
    now = run and (tables.current() or _of_batch())
    if not now:
        return False
    output, result = run(now, *args, **kwargs)
    hand_over(output, result)
    return True


def _of_batch() -> tables.Current | None:
    """What the batch of this forward is captured with; None where no forward has a context."""
    context = ops.found_context()
    return context and getattr(context.forward_batch, CAPTURED_INTO, None)


def _run_mamba2(
    now: tables.Current,
    hidden_states: torch.Tensor,
    output: torch.Tensor,
    layer_id: int,
    fuses_reduce: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fuses_reduce: the next norm sums over the ranks (from 0.5.15)."""
    layer = ops.forward_context().attention_layers[layer_id]
    states = now.states(layer_id)
    return output, mamba2.run(layer.mixer, states, now.tables, hidden_states, fuses_reduce)


def _run_mixer(
    now: tables.Current, mixer: Any, rows: torch.Tensor, output: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Beside attention: the break is one of breakable/mixers.py, and given what the backend is."""
    states, factors = now.states(given["layer_id"]), given["mup_vector"]
    return output, mamba2.run(mixer, states, now.tables, rows, mup_vector=factors)


def _nets_module() -> Any:
    """captured.gdn, imported late: results of models without nets hold when that file changes."""
    from . import gdn

    return gdn


def _run_gdn(
    now: tables.Current,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    output: torch.Tensor,
    layer_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    layer = ops.forward_context().attention_layers[layer_id]
    return output, _nets_module().run(layer, now.states(layer_id), now.tables, mixed_qkv, a, b)


RUN = {
    "nemotron_mamba2_with_output": _run_mamba2,
    "mixer_on_batch": _run_mixer,
    "unified_linear_attention_with_output": _run_gdn,
}
