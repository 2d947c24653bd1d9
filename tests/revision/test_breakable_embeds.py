"""How the breakable runner hands embeddings to the layer stack it captures."""

import importlib
import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
from host import late, prefill
from host.unsaid import Unsaid, bare

with late.modules():
    from sglang.srt.layers import dp_attention
    from sglang.srt.model_executor import breakable_cuda_graph_runner
    from sglang.srt.model_executor.runner import prefill_cuda_graph_runner

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.24")

MODELS = {  # layer stack -> the name of its embeddings parameter
    "nemotron_h.NemotronHModel": "inputs_embeds",
    "qwen3_next.Qwen3NextModel": "inputs_embeds",
    "commandr.CohereModel": None,
    "baichuan.BaiChuanModel": None,
    "xverse_moe.XverseModel": None,
    "phi3_small.Phi3SmallModel": "inputs_embeds",  # without a default
    "llama.LlamaModel": "input_embeds",
    "qwen3.Qwen3Model": "input_embeds",
}


def runner_class():
    if late.has(prefill.RUNNER):
        return prefill_cuda_graph_runner.PrefillCudaGraphRunner
    return breakable_cuda_graph_runner.BreakableCudaGraphRunner  # 0.5.13


def double(model):
    """A layer stack with the real signature."""
    module, name = model.split(".")
    stack = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
    return SimpleNamespace(forward=create_autospec(stack, instance=True).forward)


def captured(model, input_embeds=None, **known):
    """The runner's own forward on a double; the runner may know something before. Returns the
    runner, and the keywords that the model was called with."""
    layer_model = double(model)
    batch = Unsaid(
        input_ids=torch.arange(4),
        positions=torch.arange(4),
        input_embeds=input_embeds,
        dp_padding_mode=dp_attention.DpPaddingMode.MAX_LEN,
    )
    runner = bare(  # the last ones are what later releases do around the call
        runner_class(),
        layer_model=layer_model,
        model_runner=SimpleNamespace(attn_backend=None, model=None),
        **{name: [] for name in ("attention_layers", "moe_layers", "moe_fusions", "dsa_indexers")},
        _prefill_forward_context=lambda *args, **kwargs: nullcontext(),
        _uses_eager_prefill_tail=lambda: True,
        _get_layer_model_positions=lambda batch: batch.positions,
        _capture_pp_proxy_tensors=lambda num_tokens: None,
        **known,
    )
    runner._run_forward(batch, 4)
    (call,) = layer_model.forward.call_args_list
    assert call.args[0] is batch.input_ids
    assert call.args[1] is batch.positions
    assert call.args[2] is batch
    assert len(call.args) == 3
    return runner, call.kwargs


@pytest.mark.parametrize("model, parameter", MODELS.items())
def test_a_stack_is_called_with_what_it_takes(model, parameter):
    """NemotronH and Qwen3-Next died at warm-up: unexpected keyword argument 'input_embeds'. A text
    model's stack gets None."""
    for embeds in (None, torch.ones(4, 8)) if parameter else (None,):
        given = captured(model, embeds)[1]
        assert list(given) == ([parameter] if parameter else [])
        assert all(value is embeds for value in given.values())


@pytest.mark.revision(">=0.5.15,<0.5.19")
@pytest.mark.parametrize("model, parameter", MODELS.items())
def test_a_replay_knows_where_the_model_hands_on_embeddings(model, parameter):
    """It copies a request's to where the graph reads them; releases only know "input_embeds"."""
    stack = double(model)
    stack.layers = [None]
    index = prefill.resolve(SimpleNamespace(model=stack))._input_embeds_arg_idx
    index = captured(model, _input_embeds_arg_idx=index)[0]._input_embeds_arg_idx
    names = list(inspect.signature(stack.forward).parameters)
    assert (None if index is None else names[index]) == parameter
