"""How releases of sglang differ, found by looking for features. No other module of this package knows a release.

Where the facts come from (paths below sglang/srt/):
    piecewise flag, forward context    compilation/piecewise_context_manager.py, 0.5.5.post3 to 0.5.13.post1
    list of split ops                  compilation/backend.py SPLIT_OPS up to 0.5.6.post2; a literal in
                                       compilation_config.py CompilationConfig.__init__ in 0.5.7;
                                       compilation_config.py SPLIT_OPS and register_split_op from 0.5.8
    breakable graph                    model_executor/breakable_cuda_graph/ from 0.5.11
    switches                           server_args.py: enable_piecewise_cuda_graph up to 0.5.9, then disable_…
Importing this module imports neither torch nor any other part of sglang; its functions do where they need them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = "sglang.srt.compilation.piecewise_context_manager"
_CONFIG = "sglang.srt.compilation.compilation_config"
_BACKEND = "sglang.srt.compilation.backend"
_RUNNER = "sglang.srt.model_executor.model_runner"
_BREAKABLE = "sglang.srt.model_executor.breakable_cuda_graph"
OPT_IN, OPT_OUT = "enable_piecewise_cuda_graph", "disable_piecewise_cuda_graph"


# The graph's state, and its split ops


def graph_flag() -> Callable[[], bool]:
    """The release's own test of whether a forward is being captured for, or replayed from, the piecewise graph.

    Bind it once in a module: model code calls it in traced forwards, where torch.compile reads it as a constant.
    """
    return importlib.import_module(_CONTEXT).is_in_piecewise_cuda_graph


def forward_context() -> Any:
    """The release's forward context: `forward_batch`, `attention_layers` by layer_id, and from 0.5.7 `moe_layers`.

    Raises RuntimeError outside of `set_forward_context`, where a split op has no layers to look up.
    """
    context = importlib.import_module(_CONTEXT).get_forward_context()
    if context is None:
        raise RuntimeError("a split op ran outside of the piecewise graph: there is no forward context")
    return context


def split_at(op_name: str) -> None:
    """Make the release's compiler split traced forwards at torch.ops.sglang.<op_name>. Calling it again changes nothing.

    A runner copies the list when it is built, so this has to come before; importing the model's module is early enough.
    Raises RuntimeError where the release has none of the known ways.
    """
    target = f"sglang.{op_name}"
    config = importlib.import_module(_CONFIG)
    if hasattr(config, "SPLIT_OPS"):
        if target not in config.SPLIT_OPS:
            config.SPLIT_OPS.append(target)
    elif hasattr(config.CompilationConfig, "add_split_op"):
        _add_to_every_config(config.CompilationConfig, target)
    else:
        try:
            backend = importlib.import_module(_BACKEND)
        except (ImportError, NotImplementedError):
            return  # the compiler's backend loads only where graphs can be captured: nothing will be split here
        if not hasattr(backend, "add_split_ops"):
            raise RuntimeError(f"this release has no way to split its piecewise graph at {target}")
        if target not in backend.SPLIT_OPS:
            backend.add_split_ops([target])


def _add_to_every_config(config_class: type, target: str) -> None:
    """For a release whose configuration makes its list afresh each time (0.5.7): add `target` to every one made later."""
    made = config_class.__init__
    targets = getattr(made, "split_targets", None)
    if targets is None:
        targets = []

        @functools.wraps(made)
        def init(self, *args, **kwargs):
            made(self, *args, **kwargs)
            for name in targets:
                self.add_split_op(name)

        init.split_targets = targets
        config_class.__init__ = init
    if target not in targets:
        targets.append(target)


def defines(module: str, name: str) -> bool:
    """Whether the release's own `module` has a function `name`; reads the file, because importing it may be circular."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return False
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    return f"\ndef {name}(" in Path(spec.origin).read_text(encoding="utf-8")


def new_tokens(forward_batch: Any) -> int:
    """Tokens of a batch before padding: those it extends by, or the drafts of each request when verifying them.

    The piecewise runner hands the real batch's extend_num_tokens on to the padded one (model_executor/
    piecewise_cuda_graph_runner.py, replay_prepare); a batch of drafts has none.
    """
    if forward_batch.extend_num_tokens is not None:
        return forward_batch.extend_num_tokens
    return forward_batch.batch_size * forward_batch.spec_info.draft_token_num


def mamba2_tokens(forward_batch: Any) -> int:
    """Rows that Mamba2's metadata accounts for: prefill tokens, then one per decode, or its drafts when verifying them.

    The fields are those of Mamba2Metadata (layers/attention/mamba/mamba2_metadata.py); is_target_verify and
    draft_token_num begin in 0.5.6. MambaMixer2 asserts that it is given exactly so many rows.
    """
    metadata = forward_batch.attn_backend.linear_attn_backend.forward_metadata
    per_decode = metadata.draft_token_num if getattr(metadata, "is_target_verify", False) else 1
    return metadata.num_prefill_tokens + metadata.num_decodes * per_decode


def counted_tokens(forward_batch: Any) -> int | None:
    """Tokens before padding, as the batch of a release's own prefill graph counts them for its split ops.

    Up to 0.5.10 that is extend_num_tokens, and None where drafts are verified: all rows count as real then.
    """
    for name in ("global_num_token_non_padded_cpu", "num_token_non_padded_cpu", "extend_num_tokens"):
        count = getattr(forward_batch, name, None)
        if count is not None:
            return count
    return None


def batch_getter(function: Callable[..., Any]) -> Callable[[], Any]:
    """What gives the batch that a split op's function runs for, from the forward context that its own module asks.

    Raises RuntimeError where the module asks none of the known ones.
    """
    names = function.__globals__
    for name in ("get_forward_context", "get_tc_piecewise_forward_context"):  # the latter from 0.5.14
        if name in names:
            return lambda: names[name]().forward_batch
    raise RuntimeError(f"{function.__module__}.{function.__name__} asks no known forward context for its batch")


def mamba_cache_chunk_size() -> int:
    """Of how many tokens a multiple the prefix cache keeps a hybrid model's states for, from 0.5.11 on. Asked as the release's
    backend does it: a function from 0.5.18 on, before that a property of its server arguments."""
    backend = importlib.import_module("sglang.srt.layers.attention.hybrid_linear_attn_backend")
    if hasattr(backend, "mamba_cache_chunk_size"):
        return backend.mamba_cache_chunk_size()
    arguments = getattr(backend, "get_server_args", None) or backend.get_global_server_args
    return arguments().mamba_cache_chunk_size


def mamba2_scan() -> Callable[..., Any]:
    """The release's own scan of a Mamba2 prefill, as its mixer's module has it (layers/attention/mamba/mamba.py)."""
    return importlib.import_module("sglang.srt.layers.attention.mamba.mamba").mamba_chunk_scan_combined


def has_sparse_attention(model_config: Any) -> bool:
    """Whether the release runs this model's attention behind an indexer (is_deepseek_nsa, configs/model_config.py)."""
    is_sparse = getattr(importlib.import_module("sglang.srt.configs.model_config"), "is_deepseek_nsa", None)
    return is_sparse is not None and is_sparse(model_config.hf_text_config)


def on_cuda() -> bool:
    """Whether the release runs on an NVIDIA GPU, as it sees it."""
    from sglang.srt.utils import is_cuda

    return is_cuda()


# The breakable graph


@dataclass(frozen=True)
class Primitive:
    """How a release captures a graph with breaks.

    graph(): a new graph with replay(); capture(graph, pool, stream): a context manager that captures into it;
    capturing(), replaying(): context managers around all captures, and around a replay.
    """

    graph: Callable[[], Any]
    capture: Callable[[Any, Any, Any], Any]
    capturing: Callable[[], Any]
    replaying: Callable[[], Any]


def own_primitive() -> Primitive | None:
    """The release's own breakable graph (from 0.5.11), or None."""
    if not has_breakable():
        return None
    own = importlib.import_module(f"{_BREAKABLE}.breakable_cuda_graph")
    flag = importlib.import_module(f"{_BREAKABLE}.context").enable_breakable_cuda_graph
    return Primitive(own.BreakableCUDAGraph, own.BreakableCUDAGraphCapture, flag, flag)


def piecewise_flag() -> Any:
    """A context manager in which the release's `graph_flag` is true."""
    return importlib.import_module(_CONTEXT).enable_piecewise_cuda_graph()


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def capture_context(runner: Any) -> Any:
    """The release's context manager for capturing graphs, with garbage collection frozen; gives the stream."""
    from sglang.srt.distributed.parallel_state import graph_capture
    from sglang.srt.model_executor.piecewise_cuda_graph_runner import freeze_gc

    @contextlib.contextmanager
    def context():
        with freeze_gc(runner.server_args.enable_cudagraph_gc), graph_capture() as capture:
            yield capture.stream

    return context()


def graph_pool(runner: Any) -> Any:
    """The memory pool that all of the process's graphs share; they never run at the same time."""
    from sglang.srt.distributed.device_communicators.pynccl_allocator import set_graph_pool_id
    from sglang.srt.model_executor import cuda_graph_runner

    if cuda_graph_runner.get_global_graph_memory_pool() is None:
        cuda_graph_runner.set_global_graph_memory_pool(torch_device_module(runner).graph_pool_handle())
    pool = cuda_graph_runner.get_global_graph_memory_pool()
    set_graph_pool_id(pool)
    return pool


def torch_device_module(runner: Any) -> Any:
    import torch

    return torch.get_device_module(runner.device)


def forward_scope(runner: Any, forward_batch: Any) -> Any:
    """The release's set_forward_context for a batch: what breaks look their layer and their batch up in.

    0.5.10 takes num_tokens as well, from which its attention plans padding; breaks get no padding, so it stays unset.
    """
    lists = [getattr(runner, name) for name in ("attention_layers", *layer_lists(runner))]
    quantization = getattr(runner.model, "quant_config", None)
    return importlib.import_module(_CONTEXT).set_forward_context(forward_batch, lists[0], quantization, *lists[1:])


def begin_forward(forward_batch: Any, tokens: int) -> None:
    """What a graph runner settles before a forward of `tokens` rows without data parallelism."""
    from sglang.srt.layers.dp_attention import set_dp_buffer_len, set_is_extend_in_batch

    forward_batch.dp_local_start_pos = forward_batch.dp_local_num_tokens = None
    set_dp_buffer_len(None, tokens, forward_batch.dp_padding_mode.is_max_len())
    set_is_extend_in_batch(False)


def hidden_modes(runner: Any) -> tuple[Any, ...]:
    """The CaptureHiddenModes that this server's prefills can have: none wanted, and others where it was set up for them.

    The captured layer stack is the same for all; what is kept of its result is decided behind the replay.
    """
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode as Mode

    speculative = getattr(runner, "spec_algorithm", None)
    wanted = runner.server_args.enable_return_hidden_states or (speculative is not None and not speculative.is_none())
    return (Mode.NULL, Mode.LAST, Mode.FULL) if wanted else (Mode.NULL,)


def placeholder_batch(runner: Any, inputs: dict[str, Any], tokens: int) -> Any:
    """A ForwardBatch of one request with `tokens` new tokens, for capturing.

    inputs: the static tensors that captured kernels read (input_ids, positions, out_cache_loc, …), cut to `tokens`.
    Nothing but these and the breaks may depend on the batch. Field names as in 0.5.9 to 0.5.11.
    """
    import torch
    from sglang.srt.layers.dp_attention import DpPaddingMode
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    def here(value: int) -> Any:
        return torch.tensor([value], dtype=torch.int64, device=runner.device)

    values = inputs | dict(
        forward_mode=ForwardMode.EXTEND, global_forward_mode=ForwardMode.EXTEND, batch_size=1, seq_lens_sum=tokens,
        req_pool_indices=here(0), seq_lens=here(tokens), orig_seq_lens=here(tokens), seq_lens_cpu=torch.tensor([tokens]),
        extend_num_tokens=tokens, extend_seq_lens=here(tokens), extend_prefix_lens=here(0), extend_start_loc=here(0),
        extend_seq_lens_cpu=[tokens], extend_prefix_lens_cpu=[0], extend_logprob_start_lens_cpu=[tokens], num_token_non_padded_cpu=tokens,
        return_logprob=False, capture_hidden_mode=hidden_modes(runner)[0], dp_padding_mode=DpPaddingMode.get_default_mode_in_cuda_graph(),
        req_to_token_pool=runner.req_to_token_pool, token_to_kv_pool=runner.token_to_kv_pool, attn_backend=runner.attn_backend,
    )  # fmt: skip
    if getattr(runner, "is_hybrid_swa", False):  # else a store would go on with the decode graphs' last one (0.5.11)
        values["out_cache_loc_swa"] = torch.zeros(tokens, dtype=torch.int64, device=runner.device)
    known = {field.name for field in dataclasses.fields(ForwardBatch)}
    return ForwardBatch(**{name: value for name, value in values.items() if name in known})


def has_breakable() -> bool:
    """Whether the release has a breakable graph of its own."""
    return _has(_BREAKABLE)


def lacks_breaks() -> bool:
    """Whether the piecewise graph is the release's only prefill graph (before 0.5.11)."""
    return _has(_CONTEXT) and not has_breakable()


def breakable_runner() -> type | None:
    """The release's own runner of the breakable graph, where it captures the layer stack alone (0.5.12, 0.5.13)."""
    module = "sglang.srt.model_executor.breakable_cuda_graph_runner"
    own = importlib.import_module(module).BreakableCudaGraphRunner if _has(module) else None
    return own if own and "layer_model" in own.can_run.__code__.co_names else None


def knows_idle_ranks() -> bool:
    """Whether the release's breakable runner takes part in data-parallel attention (from 0.5.13)."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    return "can_run_dp_breakable_cuda_graph" in {field.name for field in dataclasses.fields(ForwardBatch)}


def keeps_own_metadata(runner: Any) -> bool:
    """Whether the attention backend prepares breakable graphs itself (DeepSeek-V4's, from 0.5.13)."""
    return bool(getattr(runner.attn_backend, "use_captured_forward_metadata_for_breakable_cuda_graph", False))


def weak_views(capture: Any) -> Callable[[Any], Any]:
    """What the module of a release's own capture of a breakable graph makes weak views with (from 0.5.11)."""
    return vars(sys.modules[type(capture).__module__])["_weak_ref_if_tensor"]


def weak_view(tensor: Any) -> Any:
    """A view of a tensor on the GPU that does not keep its memory: the release's own, from 0.5.6.post2 to 0.5.20.

    For releases without a breakable graph; those with one pass their own. Raises ModuleNotFoundError elsewhere.
    """
    return importlib.import_module("sglang.srt.compilation.weak_ref_tensor").weak_ref_tensors(tensor)


# The model runner


def layer_lists(runner: Any) -> tuple[str, ...]:
    """The lists by layer_id that this release's runner collects next to attention_layers: none up to 0.5.6.post2,
    then moe_layers, and moe_fusions from 0.5.9."""
    return tuple(name for name in ("moe_layers", "moe_fusions") if hasattr(runner, name))


def sees_layers(model: Any) -> bool:
    """Whether the runner's own loop finds decoder layers: in model.model, from 0.5.8 in model.language_model as well
    (ModelRunner.init_piecewise_cuda_graphs and resolve_language_model, model_executor/model_runner.py)."""
    resolve = getattr(importlib.import_module(_RUNNER), "resolve_language_model", lambda whole: whole.model)
    try:
        inner = resolve(model)
    except AttributeError:
        return False
    wrapped = getattr(model, "language_model", None)
    return any(hasattr(place, "layers") for place in (inner, wrapped, getattr(wrapped, "model", None)))


def is_first_rank(runner: Any) -> bool:
    """Whether this process is the one that logs for its server."""
    ranks = ("tp_rank", "pp_rank", "dp_rank", "moe_ep_rank")
    return not any(getattr(_ranks(runner), rank, None) for rank in ranks)


def leads_its_layers(runner: Any) -> bool:
    """Whether this process is the first of those that hold the same layers."""
    return not getattr(_ranks(runner), "tp_rank", None)


def _ranks(runner: Any) -> Any:
    """What has tp_rank and so on: the runner up to 0.5.15, its `ps` from 0.5.16, after 0.5.20 one object per process."""
    if hasattr(runner, "tp_rank"):
        return runner
    if hasattr(runner, "ps"):
        return runner.ps
    try:
        return importlib.import_module("sglang.srt.runtime_context").get_parallel()
    except ImportError:
        return runner


def out_of_reach(runner: Any, owner: Any) -> str | None:
    """Why this release leaves a model eager although its layers were found, in `owner`; None where it does not.

    0.5.14 and 0.5.15, where resolve_language_model is part of model_runner.py, capture no wrapper without a `model`
    (model_runner.py:2636 in 0.5.14), unless it names its stack itself. Their piecewise backend only compiles
    language_model.model (runner_backend/tc_piecewise_cuda_graph_backend.py:165). Later releases take what was found.
    """
    if not defines("sglang.srt.model_executor.model_runner", "resolve_language_model"):
        return None
    model = runner.model
    if not hasattr(model, "model") and not hasattr(model, "get_layer_stack"):
        return "this release captures no wrapper that has no `model`"
    compiled = getattr(getattr(model, "language_model", model), "model", None)
    graphs = getattr(runner.server_args, "cuda_graph_config", None)
    if graphs is not None and graphs.prefill.backend == "tc_piecewise" and compiled is not owner:
        return "the tc_piecewise backend of this release only compiles language_model.model"
    return None


def attention_layers(runner: Any, owner: Any) -> list[Any]:
    """What a release from 0.5.14 on makes its breaks for, in the layer stack `owner`. None stands for a layer without.

    From 0.5.16 a function collects them, which 0.5.20 calls in a method of the runner. Before, the runner has them already.
    """
    setup = "sglang.srt.model_executor.model_runner_components.layer_setup"
    if not _has(setup):
        return runner.attention_layers
    collect = getattr(runner, "get_cuda_graph_layers", None) or importlib.import_module(setup).compute_attention_and_moe_layers
    return collect(owner)[0]


def free_memory(runner: Any) -> float:
    """GB that the runner's device has left, as its module asks for it."""
    return vars(sys.modules[type(runner).__module__])["get_available_gpu_memory"](runner.device, runner.gpu_id)


def graph_runner(runner: Any) -> Any:
    """The prefill graph's runner, or None where the release left the graph off."""
    return getattr(runner, "piecewise_cuda_graph_runner", None)


def capture_sizes(graph: Any) -> tuple[int, ...]:
    """The token counts that a graph runner captured, ascending."""
    return tuple(sorted(getattr(graph, "capture_num_tokens", ())))


def never_runs(graph: Any) -> bool:
    """Whether a graph runner refuses every batch: the breakable one does where it found no inner model (0.5.12, 0.5.13)."""
    return getattr(graph, "layer_model", graph) is None


# Why a graph is off


def feature(server_args: Any) -> str:
    """Which prefill graph these arguments are about."""
    if getattr(server_args, "enable_breakable_cuda_graph", False):
        return "breakable CUDA graph"
    return f"piecewise CUDA graph, {getattr(server_args, 'piecewise_cuda_graph_compiler', 'eager')} compiler"


def sizes_to_capture(server_args: Any) -> tuple[int, ...]:
    """The token counts that the arguments ask to capture; empty where every one is over a limit."""
    return tuple(getattr(server_args, "piecewise_cuda_graph_tokens", None) or ())


def sizes_that_fit(runner: Any) -> list[int]:
    """Those of them that a batch of this server can have, ascending.

    A placeholder request longer than the context has no place in req_to_token; one larger than the cache never comes.
    """
    limit = largest_batch(runner)
    return sorted({size for size in sizes_to_capture(runner.server_args) if size <= limit})


def largest_batch(runner: Any) -> int:
    """Tokens of the largest prefill that the context and the cache allow."""
    return min(runner.model_config.context_len, runner.max_total_num_tokens)


@dataclass(frozen=True)
class Rule:
    """A condition under which the release leaves the graph off. holds: None where it cannot be evaluated from here."""

    where: str
    condition: str
    holds: bool | None

    def __str__(self) -> str:
        return f"{self.condition} ({self.where})"


@dataclass(frozen=True)
class Switch:
    """The server argument that decides. opt_in: off unless asked for. on: what it says now."""

    flag: str
    opt_in: bool
    on: bool


def switch(server_args: Any) -> Switch | None:
    """The release's switch for the prefill graph, or None where it has neither known one."""
    if hasattr(server_args, OPT_IN):
        return Switch("--enable-piecewise-cuda-graph", True, bool(getattr(server_args, OPT_IN)))
    if hasattr(server_args, OPT_OUT):
        return Switch("--disable-piecewise-cuda-graph", False, not getattr(server_args, OPT_OUT))
    return None


def switch_rules(server_args: Any) -> list[Rule]:
    """The release's own rules that turn its switch off, each evaluated on the arguments as they are now.

    They are read from the source of ServerArgs: conditions over `self.disable_piecewise_cuda_graph = True` (or
    `self.enable_… = False`). What a rule asks is therefore always what this release asks.
    """
    wanted = {OPT_IN: False, OPT_OUT: True}

    def turns_off(statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
            return False
        names = [target.attr for target in statement.targets if isinstance(target, ast.Attribute)]
        return any(name in wanted and statement.value.value is wanted[name] for name in names)

    methods = [value for value in vars(type(server_args)).values() if inspect.isfunction(value)]
    methods = [method for method in methods if set(method.__code__.co_names) & wanted.keys()]
    return [rule for method in methods for rule in _rules(method, server_args, turns_off)]


def argument_rules(server_args: Any) -> list[str]:
    """Why other arguments turn the prefill graph off: the switch itself, or the release's rules about arguments alone.

    Rules that ask about the model say nothing about what was typed, and are left to the report.
    """
    now = switch(server_args)
    if now is None or now.on or now.opt_in:
        return []
    rules = switch_rules(server_args)
    holding = [rule for rule in rules if rule.holds]
    if not holding:
        return [" or ".join([f"{now.flag} is given", *(str(rule) for rule in rules if rule.holds is None)])]
    return [str(rule) for rule in holding if "get_model_config" not in rule.condition]


def switch_on(server_args: Any) -> None:
    """Ask for the prefill graph where the release leaves it off otherwise (up to 0.5.9)."""
    if hasattr(server_args, OPT_IN) and not hasattr(server_args, OPT_OUT):
        setattr(server_args, OPT_IN, True)


def piecewise_unasked(args: Any) -> bool:
    """Whether the piecewise graph is on (0.5.13, 0.5.14), and by default: nobody asked for it, nor for another one.

    From 0.5.14 on one setting holds each phase's graph, and those that were typed are locked.
    """
    if not hasattr(args, "cuda_graph_config"):
        asked = args.enforce_piecewise_cuda_graph or args.enable_breakable_cuda_graph
        return not args.disable_piecewise_cuda_graph and not asked
    locked = ("prefill", "backend") in args._cuda_graph_config_locked
    return args.cuda_graph_config.prefill.backend == "tc_piecewise" and not locked


def piecewise_off(args: Any) -> None:
    """Leave the piecewise graph off, on the releases of `piecewise_unasked`."""
    if hasattr(args, "cuda_graph_config"):
        args.cuda_graph_config.prefill.backend = "disabled"
    else:
        args.disable_piecewise_cuda_graph = True


def wants_graph(runner: Any) -> bool:
    """Whether a model runner is to have a prefill graph (up to 0.5.13), as far as its arguments and the release's rules about
    them go. From 0.5.11 on a draft's is not, until its worker asks for it (0.5.13): the release looks at that model itself."""
    now = switch(runner.server_args)
    if now is None or not now.on or any(rule.holds for rule in runner_rules(runner)):
        return False
    set_up = getattr(type(runner), "init_piecewise_cuda_graphs", None)
    skips_drafts = set_up is not None and "is_draft_worker" in set_up.__code__.co_names
    return not (skips_drafts and runner.is_draft_worker)


def runner_rules(runner: Any) -> list[Rule]:
    """The model runner's own rules (`return False` in can_run_piecewise_cuda_graph, up to 0.5.9), evaluated now."""
    method = getattr(type(runner), "can_run_piecewise_cuda_graph", None)

    def says_no(statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Return) and isinstance(statement.value, ast.Constant) and statement.value.value is False

    return _rules(method, runner, says_no) if inspect.isfunction(method) else []


def _rules(method: Callable, owner: Any, is_effect: Callable[[ast.stmt], bool]) -> list[Rule]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    except (OSError, SyntaxError, IndexError):
        return []
    names = {**method.__globals__, "self": owner}
    found = []
    for conditions in _paths(tree.body, (), is_effect):
        text = " and ".join(ast.unparse(condition) for condition in conditions)
        found.append(Rule(f"{type(owner).__name__}.{method.__name__}", text or "always", _all_hold(conditions, names)))
    return found


def _paths(body: list[ast.stmt], conditions: tuple, is_effect: Callable[[ast.stmt], bool]) -> Iterator[tuple]:
    """The conditions on each way through `body` to a statement that is_effect."""
    for statement in body:
        if is_effect(statement):
            yield conditions
        elif isinstance(statement, ast.If):
            otherwise = ast.UnaryOp(ast.Not(), statement.test)
            yield from _paths(statement.body, (*conditions, statement.test), is_effect)
            yield from _paths(statement.orelse, (*conditions, otherwise), is_effect)
            if isinstance(statement.body[-1], (ast.Return, ast.Raise)):
                conditions = (*conditions, otherwise)


def _all_hold(conditions: tuple, names: dict[str, Any]) -> bool | None:
    verdicts = [_holds(condition, names) for condition in conditions]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _holds(condition: ast.expr, names: dict[str, Any]) -> bool | None:
    expression = ast.fix_missing_locations(ast.Expression(condition))
    try:
        return bool(eval(compile(expression, "<rule>", "eval"), names))
    except Exception:  # a local name of the method, or a check that needs the moment it was made for
        return None
