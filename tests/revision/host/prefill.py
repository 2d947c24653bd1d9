"""How 0.5.14 and later set up the prefill graph: their own code, captures stood in for."""

import ast
import importlib
import inspect
from contextlib import ExitStack, nullcontext
from itertools import chain, repeat
from types import SimpleNamespace
from unittest import mock

import torch

from . import late, replayed

RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"
# from 0.5.16; before, ModelRunner did it
_SETUP = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"
_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
# those that capture the stack alone
_BACKENDS = {"breakable": "BreakableCudaGraphBackend", "full": "FullCudaGraphBackend"}


def offers(backend):
    """Whether the release's prefill runner captures the stack alone with "breakable" or "full"."""
    return _BACKENDS[backend] in vars(importlib.import_module(RUNNER))


def captures_on_cpu(monkeypatch):
    """The module of the release's prefill runner, whose captures ask no GPU for anything."""
    module, session = importlib.import_module(RUNNER), nullcontext(SimpleNamespace(stream=None))
    monkeypatch.setattr(module, "graph_capture", lambda **_: session)
    monkeypatch.setattr(module, "get_available_gpu_memory", lambda *_, **__: 0.0)
    own = module.PrefillCudaGraphRunner
    monkeypatch.setattr(own, "warmup", lambda self: None)
    monkeypatch.setattr(own, "model_context", lambda self: nullcontext(), raising=False)
    monkeypatch.setattr(torch.cpu, "graph_pool_handle", lambda: (0, 1), raising=False)
    return module


def takes_every_wrapper():
    """Whether the release captures a wrapper that has a language_model and no `model`."""
    return late.has(_SETUP)


def resolve(model, backend="breakable"):
    """A runner after the statement of its __init__ that sets layer_model, for a whole `model`."""
    module = importlib.import_module(RUNNER)
    names, source = vars(module), inspect.getsource(module)
    [cls] = [
        part
        for part in ast.parse(source).body
        if getattr(part, "name", "") == "PrefillCudaGraphRunner"
    ]
    [init] = [part for part in cls.body if getattr(part, "name", "") == "__init__"]
    [statement] = [
        part
        for part in init.body
        if isinstance(part, ast.If) and "self.layer_model =" in ast.unparse(part)
    ]
    made = object.__new__(names[_BACKENDS[backend]]) if backend in _BACKENDS else None
    runner = SimpleNamespace(
        model_runner=SimpleNamespace(model=model), backend=made, layer_model=None
    )
    replayed.run([statement], {**names, "self": runner})
    return runner


def _made(runner, backend):
    made = resolve(runner.model, backend)
    # as its __init__ has it
    made.capture_num_tokens = sorted(runner.server_args.cuda_graph_config.prefill.bs)
    return made


def set_up(model, backend="breakable", tp_rank=0):
    """What the release's set-up makes of `model`: a runner of resolve(), or None where it leaves
    prefill eager.

    The number of layers, another decision, is always right.
    """
    found = capture(model, backend, tp_rank)
    return getattr(found, "runner", found)  # from 0.5.17 with what it cost


def capture(
    model,
    backend="breakable",
    tp_rank=0,
    layers=0,
    sizes=(64,),
    context_len=4096,
    requests=8,
    eager_runner=None,
    draft=False,
    arguments=(),
    memory=(80.0, 80.0),
    then=None,
    compiler="eager",
):
    """What the release's set-up returns for `model`: from 0.5.17 a GraphCapture, before a runner.

    layers: how many the model is said to have; sizes: tokens to capture for; requests: what the
    pool has room for; draft: the model is a draft, and its head is there; arguments: further server
    arguments; memory: GB that are free before the capture and after it; then: called with the model
    runner, as the release leaves it behind. Ranks are given in every way that a release looks them
    up.
    """
    settings = dict(backend=backend, tc_compiler=compiler, full_prefill_max_req=1)
    prefill = SimpleNamespace(bs=list(sizes), **settings)
    config = SimpleNamespace(prefill=prefill)
    ranks = SimpleNamespace(
        tp_rank=tp_rank, pp_rank=0, pp_size=1, dp_rank=None, moe_ep_rank=0, enable_prefill_cp=False
    )
    fields = dict(
        model=model,
        server_args=SimpleNamespace(cuda_graph_config=config, enable_lora=False, **dict(arguments)),
        model_config=SimpleNamespace(num_hidden_layers=layers, context_len=context_len),
        layer_info=SimpleNamespace(start_layer=0, end_layer=layers),
        req_to_token_pool=SimpleNamespace(size=requests),
        spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
        is_draft_worker=draft,
        lora_manager=None,
        device="cpu",
        gpu_id=0,
    )
    stand_ins = dict(
        PrefillCudaGraphRunner=lambda runner: _made(runner, backend),
        check_cuda_graph_backend=lambda phase, asked: asked == backend,
        get_available_gpu_memory=lambda *args, told=chain(memory, repeat(memory[-1])), **kwargs: (
            next(told)
        ),
        get_exec=lambda: SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config)),
        get_parallel=lambda: ranks,
    )
    module = importlib.import_module(_SETUP if late.has(_SETUP) else _MODEL_RUNNER)
    with ExitStack() as patches:
        for name in stand_ins.keys() & vars(module).keys():
            patches.enter_context(mock.patch.object(module, name, stand_ins[name]))
        if not late.has(_SETUP):
            runner = module.ModelRunner.__new__(module.ModelRunner)
            vars(runner).update(fields, **vars(ranks), eager_runner=eager_runner)
            runner.init_prefill_cuda_graph(force_for_draft_worker=draft)
            if then:
                then(runner)
            return runner.prefill_cuda_graph_runner
        from sglang.srt import runtime_context
        from sglang.srt.model_executor.model_runner_components import layer_setup

        if "self.ps = " in inspect.getsource(importlib.import_module(_MODEL_RUNNER)):
            fields["ps"] = ranks
        else:
            patches.enter_context(
                mock.patch.object(runtime_context, "get_parallel", stand_ins["get_parallel"])
            )
        runner = SimpleNamespace(
            **fields, get_cuda_graph_layers=layer_setup.compute_attention_and_moe_layers
        )
        found = module.capture_prefill_graph(
            model_runner=runner, eager_runner=eager_runner, force_for_draft_worker=draft
        )
        if then:
            runner.eager_runner = eager_runner
            runner.prefill_cuda_graph_runner = getattr(found, "runner", found)
            then(runner)
        return found
