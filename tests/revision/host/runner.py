"""A model runner as far as the prefill graph looks at it, to run the release's own decision on."""

import ast
import contextlib
import inspect
import sys
import textwrap
import types
from unittest import mock

from . import late, prefill, process, replayed

with late.modules():
    from sglang.srt.model_executor import model_runner
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.speculative import spec_info


class NativeSparseAttnBackend:
    """Has the name of the backend that sparse attention is let into the graph with."""


class Captured:
    """Stands in for a graph runner, the release's or the overlay's: it was asked to capture."""

    def __init__(self, model_runner):
        self.capture_num_tokens = list(model_runner.server_args.piecewise_cuda_graph_tokens)
        self.attention_layers = model_runner.attention_layers


def decide(
    model,
    num_hidden_layers=None,
    tp_rank=0,
    context_len=4096,
    speculative=None,
    is_multimodal=False,
    **server_args,
):
    """What ModelRunner.init_piecewise_cuda_graphs makes of `model`: the runner it left behind,
    captures stood in for.

    num_hidden_layers: what the configuration says; more than there are keeps a release from
    capturing. speculative: the name of the algorithm that drafts for it.
    """
    switch = process.offered(enable_piecewise_cuda_graph=True)
    args = process.default_server_args(
        **{**switch, "piecewise_cuda_graph_tokens": [64, 128], **server_args}
    )
    layers = num_hidden_layers or getattr(getattr(model, "config", None), "num_hidden_layers", 1)
    runner = model_runner.ModelRunner.__new__(model_runner.ModelRunner)
    vars(runner).update(
        model=model,
        server_args=args,
        model_config=types.SimpleNamespace(
            num_hidden_layers=layers,
            context_len=context_len,
            hf_text_config=getattr(model, "config", types.SimpleNamespace(architectures=[""])),
        ),
        max_total_num_tokens=1 << 20,
        device="cpu",
        gpu_id=0,
        tp_rank=tp_rank,
        pp_rank=0,
        pp_size=args.pp_size,
        is_draft_worker=False,
        is_multimodal=is_multimodal,
        use_mla_backend=False,
        attn_backend=NativeSparseAttnBackend(),
        spec_algorithm=spec_info.SpeculativeAlgorithm.from_string(speculative),
    )
    stand_ins = dict(
        PiecewiseCudaGraphRunner=Captured, get_available_gpu_memory=lambda *_, **__: 0.0
    )
    with contextlib.ExitStack() as stack:
        for name in stand_ins.keys() & vars(model_runner).keys():
            stack.enter_context(mock.patch.object(model_runner, name, stand_ins[name]))
        if "set_up(self)" in inspect.getsource(model_runner):
            made = Captured if breakable.capture.breakable_runner() else None
            stack.enter_context(mock.patch.object(breakable.features, "on_cuda", lambda: True))
            stack.enter_context(mock.patch.object(breakable, "BreakableRunner", Captured))
            own = mock.patch.object(breakable.capture, "breakable_runner", lambda: made)
            stack.enter_context(own)
        _decide(runner)
    return runner


def set_up(model, then, sizes=(64, 128), tp_rank=0):
    """Call `then` with the model runner as the release's own set-up of the prefill graph leaves it
    behind, on any release; captures are stood in for."""
    if late.has(prefill.RUNNER):
        layers = len(model.model.layers)
        prefill.capture(model, tp_rank=tp_rank, layers=layers, sizes=sizes, then=then)
    else:
        then(decide(model, tp_rank=tp_rank, piecewise_cuda_graph_tokens=list(sizes)))


def _decide(runner):
    module = sys.modules[type(runner).__module__]
    if hasattr(runner, "init_piecewise_cuda_graphs"):
        runner.init_piecewise_cuda_graphs()
        return
    # In 0.5.5 the decision is a statement of __init__, which also loads the model.
    init = ast.parse(textwrap.dedent(inspect.getsource(type(runner).__init__))).body[0]
    [decision] = [
        part
        for part in init.body
        if isinstance(part, ast.If) and "enable_piecewise_cuda_graph" in ast.unparse(part.test)
    ]
    replayed.run([decision], {**vars(module), "self": runner})
