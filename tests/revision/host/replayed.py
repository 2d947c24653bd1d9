"""A prefill through the release's own graph runner, with no graph behind it: breaks run, and get
the batch that a replay gives them."""

import __future__

import ast
import contextlib
import importlib
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch

from . import late, process
from .unsaid import Unsaid

with late.modules():
    from sglang.srt.layers import logits_processor
    from sglang.srt.model_executor import cuda_graph_config, forward_batch_info
    from sglang.srt.speculative import spec_info

_PIECEWISE = "sglang.srt.model_executor.piecewise_cuda_graph_runner"
_BREAKABLE = "sglang.srt.model_executor.breakable_cuda_graph_runner"
_OLDER = {"piecewise": _PIECEWISE, "breakable": _BREAKABLE}
_PREFILL = (  # from 0.5.14, for all graphs
    "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"
)
_CONTEXTS = {
    "sglang.srt.compilation.piecewise_context_manager": "get_forward_context",
    "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph.context_manager": (
        "get_tc_piecewise_forward_context"
    ),
}
SIZES = [64, 256]

Layers = Callable[[Any], object]


class Replays:
    """The release's runner of one kind of graph, for a pool that keeps states of prefills."""

    def __init__(
        self,
        kind: str,
        attention: Any,
        layers: Layers,
        speculative: str | None = None,
        derive: Callable[[type], type] = lambda release: release,
    ) -> None:
        """attention: a backend with init_forward_metadata(batch). layers(batch): what breaks do
        with the batch that they look up. speculative: the name of the algorithm that drafts for the
        model, if any. derive: what the release's class is made to, without its __init__."""
        self._model = _Model(lambda *_, **__: layers(_batch_of_breaks()))
        model_runner = _model_runner(kind, attention, self._model, speculative)
        self.runner = _made(kind, self._model, model_runner, derive)

    def run(self, batch: Any) -> None:
        """One prefill, as the release's model runner has it replayed."""
        batch.capture_hidden_mode = self.runner.capture_hidden_mode
        replay = getattr(self.runner, "execute", None) or self.runner.replay
        replay(batch)


class NoAttention:
    """A backend that prepares nothing."""

    def init_forward_metadata(self, batch: Any) -> None:
        pass


class _Model:
    """A model whose layer stack is one break."""

    def __init__(self, breaks: Callable[..., object]) -> None:
        self.breaks = breaks
        self.model = types.SimpleNamespace(forward=breaks)

    def forward(self, input_ids: Any, positions: Any, forward_batch: Any, **_: Any) -> Any:
        self.model.forward(input_ids, positions, forward_batch)
        return logits_processor.LogitsProcessorOutput(next_token_logits=torch.zeros(1, 1))


def _model_runner(kind: str, attention: Any, model: Any, speculative: str | None) -> Any:
    attention.use_captured_forward_metadata_for_breakable_cuda_graph = False
    return Unsaid(
        server_args=_server_args(kind),
        spec_algorithm=spec_info.SpeculativeAlgorithm.from_string(speculative),
        model=model,
        attn_backend=attention,
        device="cpu",
        dtype=torch.float32,
        model_config=Unsaid(
            hidden_size=128,
            vocab_size=8,
            hf_config=types.SimpleNamespace(architectures=["NemotronHForCausalLM"]),
        ),
        req_to_token_pool=types.SimpleNamespace(size=32),
        pp_group=types.SimpleNamespace(is_last_rank=True),
        tp_group=types.SimpleNamespace(ca_comm=None),
        is_generation=True,
    )


def _server_args(kind: str) -> Any:
    args = process.default_server_args(**process.extra_buffer())
    args.piecewise_cuda_graph_tokens = SIZES
    if "cuda_graph_config" in process.known():
        args.cuda_graph_config = types.SimpleNamespace(
            prefill=types.SimpleNamespace(bs=SIZES, backend=_backend(kind))
        )
    process.use_server_args(args)
    process.start_groups()
    return args


def _backend(kind: str) -> Any:
    return {
        "piecewise": cuda_graph_config.Backend.TC_PIECEWISE,
        "breakable": cuda_graph_config.Backend.BREAKABLE,
    }[kind]


def _made(kind: str, model: _Model, model_runner: Any, derive: Callable[[type], type]) -> Any:
    """The runner behind the statements of its __init__ that make its buffers, without captures."""
    name = _PREFILL if late.has(_PREFILL) else _OLDER[kind]
    module = importlib.import_module(name)
    cls = next(value for value in vars(module).values() if _is_runner(value, name))
    made = object.__new__(derive(cls))
    vars(made).update(
        model_runner=model_runner,
        device="cpu",
        quant_config=None,
        capture_num_tokens=SIZES,
        attention_layers=[],
        moe_layers=[],
        moe_fusions=[],
        dsa_indexers=[],
        mha_companion_layers=[],
        has_mha_companion_layers=False,
        use_captured_attn_metadata=False,
        attn_metadata_buffers=None,
        _prefill_static_buffers=None,
        static_draft_hidden_states=None,
        _is_full_backend=False,
        return_hidden_states_mode=forward_batch_info.CaptureHiddenMode.NULL,
        enable_cp_v2_bcg_capture=False,
        _capture_chunked_prefix=False,
        _input_embeds_arg_idx=None,
        use_input_embeds=False,
        layer_model=model.model if kind == "breakable" else None,
        graphs={size: types.SimpleNamespace(replay=model.breaks) for size in SIZES},
        output_buffers=dict.fromkeys(SIZES),
    )
    run(_buffers_of(cls), vars(module) | {"self": made, "model_runner": model_runner})
    if name == _PREFILL:
        base = module.BreakableCudaGraphBackend if kind == "breakable" else object
        made.backend = _without_graph(base, model.breaks if kind == "breakable" else model.forward)
    return made


def _is_runner(value: object, module: str) -> bool:
    own = inspect.isclass(value) and value.__module__ == module
    return own and bool({"replay", "execute"} & vars(value).keys())


def _without_graph(base: type, forward: Callable[..., Any]) -> Any:
    """What a runner from 0.5.14 on replays with: `forward` runs in place of a graph."""

    def replay(self: Any, key: Any, batch: Any, **words: Any) -> Any:
        return forward(batch.input_ids, batch.positions, batch, **words)

    def session(self: Any) -> Any:
        return contextlib.nullcontext()

    cls = type("WithoutGraph", (base,), {"replay": replay, "replay_session": session})
    cls.__abstractmethods__ = frozenset()
    return cls.__new__(cls)


def _buffers_of(cls: type) -> list[ast.stmt]:
    """From the statement about the tokens that are captured to the one before the layer lists."""
    init = ast.parse(textwrap.dedent(inspect.getsource(cls.__init__))).body[0]
    assert isinstance(init, ast.FunctionDef)
    told = [ast.unparse(statement) for statement in init.body]
    begins = ("self.quant_config =", "self.capture_num_tokens =")
    first = next(i for i, text in enumerate(told) if text.startswith(begins))
    last = next(i for i, text in enumerate(told) if text.startswith("self.attention_layers ="))
    pairs = zip(init.body[first:last], told[first:last], strict=True)
    return [statement for statement, text in pairs if "compile_config" not in text]


def run(statements: list[ast.stmt], names: dict[str, Any]) -> None:
    """Run statements of a release's file where `names` are its global variables."""
    flag = __future__.annotations.compiler_flag  # as the release's files have it
    exec(
        compile(ast.Module(statements, []), "<release>", "exec", flags=flag, dont_inherit=True),
        names,
    )


def _batch_of_breaks() -> Any:
    """What a break looks up."""
    module = next(name for name in _CONTEXTS if late.has(name))
    return getattr(importlib.import_module(module), _CONTEXTS[module])().forward_batch
