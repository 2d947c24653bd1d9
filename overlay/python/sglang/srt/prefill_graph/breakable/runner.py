"""The breakable prefill graph's runner: it captures the layer stack alone, so that any number of
requests can replay it (as upstream sglang#24662, in releases from 0.5.12).

Logits and pooling run eagerly after the replay, on the batch as it came. The capture's own batch,
one request, is a placeholder: captured kernels see rows of tokens only, breaks see the real batch.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import tqdm

from ..captured import layers as captured_layers
from ..captured import tables
from ..compat import arguments, capture, features, model_runner, pausing
from ..model import layers, multimodal, stack
from ..piecewise import admission, with_states
from . import breaks, crossover
from . import sizes as capture_sizes
from .graph import Capture, Graph
from .sizes import CannotCapture, sizes_that_fit

logger = logging.getLogger(__name__)
_warn = functools.lru_cache(logger.warning)  # once, not at every batch
INPUTS = ("input_ids", "positions", "forward_batch")  # what a layer stack is called with
EMBEDS = multimodal.EMBEDS  # and the stack of a multimodal model, in place of token ids


def set_up(runner: Any) -> bool:
    """Whether the release must not go on to capture its piecewise graph for a ModelRunner whose
    layers it has collected: this package captured a graph, or refused one.

    Otherwise the release gets the sizes that fit.
    """
    if runner.server_args.enable_breakable_cuda_graph:
        _keep(runner, "breakable", lambda: make_runner(runner, capture.breakable_runner()))
        return True
    by_default = arguments.has_default_sizes(runner.server_args)
    if not (admission.admits(runner) and _admits_sparse(runner, by_default)):
        return True
    states = with_states.of(runner)
    if states is None:
        return False
    _keep(runner, "piecewise", lambda: _with_states(runner, states, by_default))
    return True


def _with_states(runner: Any, states: captured_layers.Captured, by_default: bool) -> Any:
    """The release's runner with states inside. by_default: nobody chose its sizes."""
    args, why = runner.server_args, None
    if by_default:
        chosen = capture_sizes.of_defaults(args.piecewise_cuda_graph_tokens, _enough(runner))
        args.piecewise_cuda_graph_tokens, why = chosen.tokens, chosen.why
    made = with_states.make_runner(runner, states)
    made.why_these_sizes = why
    return made


def _enough(runner: Any) -> int | None:
    """From how many tokens on eager prefill is as fast, where that is known."""
    return crossover.tokens(stack.inner_stack(runner.model).layers, torch.device(runner.device))


def _keep(runner: Any, kind: str, make: Callable[[], Any]) -> None:
    """Let a ModelRunner have what `make` captures, or None; log its seconds and memory."""
    begun, before = time.perf_counter(), model_runner.free_memory(runner)
    runner.piecewise_cuda_graph_runner = made = make()
    if made is not None:
        took, left = time.perf_counter() - begun, model_runner.free_memory(runner)
        text = "Captured the %s prefill graph in %.2f s. mem usage=%.2f GB. avail mem=%.2f GB."
        logger.info(text, kind, took, before - left, left)


def _admits_sparse(runner: Any, by_default: bool) -> bool:
    if not features.has_sparse_attention(runner.model_config):
        return True
    from ..piecewise import nsa  # defines its ops, which only these models need

    return nsa.admit_sparse_attention(runner, by_default)


def make_runner(runner: Any, upstream: type | None = None) -> Any:
    """The breakable graph's runner for a ModelRunner, or None where it has to prefill eagerly: one
    warning then says why.

    upstream: the release's own runner class, where it has this boundary itself (0.5.13).
    """
    if multimodal.takes_embeds(runner.model):
        upstream = None  # which captures the embedding too, for positions in one row
    captured = captured_layers.of(runner)
    if isinstance(captured, captured_layers.Captured) and not _not_handed_on(runner):
        upstream = None  # which fills no tables
    refusal, made = refuse(runner, in_order=upstream is not None), None
    if refusal is None:
        try:
            made = _make_upstream(runner, upstream) if upstream else BreakableRunner(runner)
        except CannotCapture as error:
            refusal = str(error)
    runner.prefill_graph_refusal = None
    if refusal:
        model_runner.refused(runner, refusal)
    elif isinstance(captured, str) and model_runner.is_first_rank(runner):
        text = "Layers with recurrent states run between the prefill graph's segments: %s"
        logger.info(text, captured)
    return made


def _make_upstream(runner: Any, upstream: type) -> Any:
    runner.server_args.piecewise_cuda_graph_tokens = sizes_that_fit(runner)
    try:
        return upstream(runner)
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(runner, error) from error


def refuse(runner: Any, in_order: bool = False) -> str | None:
    """Why this model's layers must not be captured, or None. in_order: the release's runner hands
    the stack INPUTS by position, and nothing else."""
    if getattr(runner, "use_mla_backend", False) and not capture.keeps_own_metadata(runner):
        return "MLA attention runs outside of the graph's breaks"
    as_text = not in_order and multimodal.takes_embeds(runner.model)
    if getattr(runner, "is_multimodal", False) and not as_text:
        return "the model is multimodal, and not known to work in this release's breakable graph"
    if not in_order and (lacking := _not_handed_on(runner)):
        return lacking
    try:
        found = stack.inner_stack(runner.model)
    except stack.NoStack as error:
        return str(error)
    named = inspect.signature(found.forward).parameters
    lacking = [name for name in INPUTS if name not in named]
    required = [name for name, known in named.items() if known.default is known.empty]
    if lacking or (in_order and required != list(INPUTS)):
        wanted = ", ".join(INPUTS)
        return f"{type(found).__name__}.forward takes ({', '.join(named)}), not ({wanted})"
    return layers.outside_breaks(found.layers)


def _not_handed_on(runner: Any) -> str | None:
    """What this package's runner would not hand the layer stack, or None. The release's own does
    (0.5.13)."""
    args = getattr(runner, "server_args", None)
    if getattr(runner, "is_draft_worker", False):
        return "drafts start from hidden states of the target, which are not captured"
    backend = getattr(args, "moe_a2a_backend", "none")
    if getattr(args, "enable_dp_attention", False) or backend not in (None, "none"):
        return "layers gather tokens of other ranks, which may be idle"
    return None


def primitive() -> capture.Primitive:
    """The release's own graph with breaks, else this package's. While that is captured, the
    piecewise flag is set: model code takes the ways that can be captured (custom all-reduce)."""

    @contextlib.contextmanager
    def capturing() -> Iterator[None]:
        with capture.piecewise_flag(), breaks.in_breakable_graph():
            yield

    own = capture.Primitive(Graph, Capture, capturing, breaks.in_breakable_graph)
    return capture.own_primitive() or own


class BreakableRunner:
    """Captures a model's layer stack once per size, and replays it for batches of at most that many
    tokens. Raises CannotCapture where no size fits the server's limits or its memory, or where the
    stack does not run on a batch of its own."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.stack = runner, stack.inner_stack(runner.model)
        self.arguments = inspect.signature(self.stack.forward)
        self.given = (*INPUTS, EMBEDS) if multimodal.takes_embeds(runner.model) else INPUTS
        self.primitive = primitive()
        self.hidden_modes = capture.hidden_modes(runner)
        captured = captured_layers.of(runner)
        self.captured = captured if isinstance(captured, captured_layers.Captured) else None
        self.tables: dict[int, tables.Tables] = {}  # by size, where states are captured
        self.graphs: dict[int, Any] = {}
        # every size's: held one by one, the default sizes of a model 8192 wide would keep 1.6 GB
        self.output: Any = None
        fitting = sizes_that_fit(runner)
        chosen = capture_sizes.choose(runner.server_args, fitting, _enough(runner))
        self.why_these_sizes = chosen.why
        self.inputs = static_inputs(runner, chosen.tokens[-1])
        self._capture(chosen.tokens)
        self.capture_num_tokens = sorted(self.graphs)

    def can_run(self, forward_batch: Any) -> bool:
        return self.why_not(forward_batch) is None

    def why_not(self, forward_batch: Any) -> str | None:
        """Why a batch has to run eagerly, or None. In few different words: the report counts
        them."""
        tokens = len(forward_batch.input_ids)
        if not 0 < tokens <= self.capture_num_tokens[-1]:
            return f"more tokens than the largest size, {self.capture_num_tokens[-1]}"
        if forward_batch.forward_mode.is_target_verify():
            return "drafts are being verified"
        wanted = forward_batch.capture_hidden_mode
        if wanted not in self.hidden_modes:
            return f"hidden states are wanted as {wanted}, which this server is not set up for"
        embeds = (getattr(forward_batch, name, None) for name in ("input_embeds", "replace_embeds"))
        if any(one is not None for one in embeds):
            return "the request brings embeddings"
        if EMBEDS in self.given and forward_batch.contains_mm_inputs():
            return "the batch has images"
        return self.captured and captured_layers.why_not(forward_batch, self.captured)

    def replay(self, forward_batch: Any, **kwargs: Any) -> Any:
        """The model's own forward of `forward_batch`, with a replay in place of its layer stack."""
        sizes = self.capture_num_tokens
        size = sizes[bisect.bisect_left(sizes, len(forward_batch.input_ids))]
        forward = self.stack.forward

        def replay_stack(*args: Any, **more: Any) -> Any:
            given = self.arguments.bind(*args, **more).arguments
            unknown = given.keys() - set(self.given)
            extra = sorted(name for name in unknown if given[name] is not None)
            if extra:  # captured was a forward without it
                what = ", ".join(extra)
                _warn(f"Prefill replays no graph: the model hands its layer stack {what}")
                return forward(*args, **more)
            values = {name: given[name] for name in self.inputs if given.get(name) is not None}
            fill(self.inputs, size, {**values, "out_cache_loc": forward_batch.out_cache_loc})
            if self.captured:
                self.captured.describe(self.tables[size], forward_batch)
            self.graphs[size].replay()
            return first_rows(self.output, given["positions"].shape[-1])

        capture.prepare_attention(self.runner, forward_batch, alone=self.captured is not None)
        with (
            self.primitive.replaying(),
            capture.forward_scope(self.runner, forward_batch),
            mock.patch.object(self.stack, "forward", replay_stack),
        ):
            return self.runner.model.forward(
                forward_batch.input_ids, forward_batch.positions, forward_batch, **kwargs
            )

    def _capture(self, sizes: list[int]) -> None:
        """Largest first, so that smaller ones find their memory in the pool; where memory is too
        small, all again without the largest."""
        while lack := self._lack_of_memory(sizes):
            self.graphs.clear()
            self.output = None
            pausing.empty_cache()
            sizes = sizes[:-1]
            if not sizes or not isinstance(lack, CannotCapture):
                raise lack

    def _lack_of_memory(self, sizes: list[int]) -> Exception | None:
        """Capture these sizes, or say that memory is too small for them."""
        pool, shown = capture.graph_pool(self.runner), model_runner.is_first_rank(self.runner)
        try:
            with capture.capture_context(self.runner) as stream, self.primitive.capturing():
                what = "Capturing the breakable prefill graph"
                for size in tqdm.tqdm(sizes[::-1], desc=what, disable=not shown):
                    self.graphs[size] = self._capture_one(size, pool, stream)
        except torch.OutOfMemoryError as error:
            return _out_of_memory(self.runner, error)
        return None

    def _capture_one(self, size: int, pool: Any, stream: Any) -> Any:
        inputs = {
            name: tokens_of(name, tensor, 0, size)
            for name, tensor in self.inputs.items()
            if name != EMBEDS
        }
        batch = capture.placeholder_batch(self.runner, inputs, size)
        capture.prepare_attention(self.runner, batch)
        torch.get_device_module(self.runner.device).synchronize()
        self.runner.tp_group.barrier()
        try:  # kernels compile, and libraries take their workspace, outside of the capture
            with self._states_of(size):
                output = first_rows(self._forward(batch, size), size)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise CannotCapture(f"a batch of {size} tokens does not run: {what}") from error
        if self.output is None:  # the largest size comes first
            self.output = each_tensor(torch.empty_like, output)
        del output
        graph = self.primitive.graph()
        with self.primitive.capture(graph, pool, stream), self._states_of(size):
            store(self._forward(batch, size), self.output)
        return graph

    def _states_of(self, size: int) -> contextlib.AbstractContextManager[None]:
        """For a forward of a placeholder: layers with states read this size's tables, where they
        are captured."""
        if not self.captured:
            return contextlib.nullcontext()
        if size not in self.tables:
            self.tables[size] = made = self.captured.tables(size, self.runner.device)
            made.fill([size], [False], made.slots)
        return tables.capturing_into(self.tables[size], self.captured.states)

    @torch.no_grad()  # as the whole model's forward has it
    def _forward(self, batch: Any, size: int) -> Any:
        capture.begin_forward(batch, size)
        given = {"input_ids": batch.input_ids, "positions": batch.positions, "forward_batch": batch}
        if EMBEDS in self.inputs:
            given |= {"input_ids": None, EMBEDS: self.inputs[EMBEDS][:size]}
        wanted = {
            name: None
            for name, known in self.arguments.parameters.items()
            if known.default is known.empty and known.kind is known.POSITIONAL_OR_KEYWORD
        }
        with capture.forward_scope(self.runner, batch):
            return self.stack.forward(**{**wanted, **given})


def _out_of_memory(runner: Any, error: Exception) -> Exception:
    """What becomes of a lack of memory: eager prefill on one rank, an error on several, which would
    go on with different graphs."""
    advice = "a smaller --mem-fraction-static or --piecewise-cuda-graph-max-tokens leaves more"
    if getattr(runner, "tp_size", 1) > 1:
        what = "too little memory is left to capture the breakable prefill graph"
        return RuntimeError(f"{what}: {advice} ({error})")
    return CannotCapture(f"too little memory is left to capture it: {advice}")


def static_inputs(runner: Any, tokens: int) -> dict[str, torch.Tensor]:
    """What captured kernels read: input_ids, positions and out_cache_loc, [tokens] int64 each. A
    stack that gets embeddings has input_embeds, [tokens, hidden], too, and can have positions of
    [3, tokens]."""
    names = ("input_ids", "positions", "out_cache_loc")
    made = {name: torch.zeros(tokens, dtype=torch.int64, device=runner.device) for name in names}
    if multimodal.takes_embeds(runner.model):
        shape = tokens, runner.model_config.hidden_size
        made[EMBEDS] = torch.zeros(shape, dtype=runner.dtype, device=runner.device)
        if multimodal.has_axes(runner.model):
            made["positions"] = made["positions"].repeat(3, 1)
    return made


def fill(inputs: dict[str, torch.Tensor], size: int, values: dict[str, torch.Tensor]) -> None:
    """Put a batch into the first `size` rows, and zero behind it: no request owns slot 0."""
    for name, value in values.items():
        count = value.shape[-1] if name == "positions" else len(value)
        tokens_of(name, inputs[name], 0, count).copy_(value)
        tokens_of(name, inputs[name], count, size).zero_()


def tokens_of(name: str, rows: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """The rows of some tokens in the input `name`: only positions count tokens last."""
    return rows[..., first:end] if name == "positions" else rows[first:end]


def each_tensor(function: Callable[..., Any], output: Any, *others: Any) -> Any:
    """What `function` gives for each tensor of a layer stack's output, and those at its place in
    `others`: in the same tuples and lists, which have auxiliary hidden states."""
    if isinstance(output, (tuple, list)):
        parts = zip(output, *others, strict=True)
        return type(output)(each_tensor(function, *part) for part in parts)
    if output is None:
        return None
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"a layer stack that returns a {type(output).__name__} cannot be replayed")
    return function(output, *others)


def first_rows(output: Any, tokens: int) -> Any:
    """`output`, of [padded tokens, …] each, without its padding."""
    return each_tensor(lambda part: part[:tokens], output)


def store(output: Any, room: Any) -> None:
    """Copy `output`, of [tokens, …] each, into the first rows of `room`, of as many or more."""
    each_tensor(lambda part, place: place[: len(part)].copy_(part), output, room)
