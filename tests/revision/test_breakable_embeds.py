"""How the breakable runner hands embeddings to the layer stack it captures."""

import importlib
import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
from host import late, prefill

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
    try:
        return prefill_cuda_graph_runner.PrefillCudaGraphRunner
    except ModuleNotFoundError:  # 0.5.13
        return breakable_cuda_graph_runner.BreakableCudaGraphRunner


def double(model):
    """A layer stack with the real signature."""
    module, name = model.split(".")
    stack = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
    return SimpleNamespace(forward=create_autospec(stack, instance=True).forward)


def captured(model, input_embeds=None, **known):
    """The runner's own forward on a double; the runner may know something before. Returns the
    runner, and the keywords that the model was called with."""
    runner = object.__new__(runner_class())
    runner.layer_model = double(model)
    runner.model_runner = SimpleNamespace(attn_backend=None, model=None)
    batch = SimpleNamespace(
        input_ids=torch.arange(4),
        positions=torch.arange(4),
        mrope_positions=None,
        input_embeds=input_embeds,
        dp_padding_mode=dp_attention.DpPaddingMode.MAX_LEN,
        dp_local_start_pos=None,
        dp_local_num_tokens=None,
        global_dp_buffer_len=None,
        global_num_tokens_cpu=None,
    )
    vars(runner).update(  # the last ones are what later releases do around the call
        **{name: [] for name in ("attention_layers", "moe_layers", "moe_fusions", "dsa_indexers")},
        quant_config=None,
        _prefill_forward_context=lambda *args, **kwargs: nullcontext(),
        _uses_eager_prefill_tail=lambda: True,
        _get_layer_model_positions=lambda batch: batch.positions,
        _capture_pp_proxy_tensors=lambda num_tokens: None,
        _qwen_bcg_hc_sidechannel=False,
        **known,
    )
    runner._run_forward(batch, 4)
    (call,) = runner.layer_model.forward.call_args_list
    assert call.args[0] is batch.input_ids
    assert call.args[1] is batch.positions
    assert call.args[2] is batch
    assert len(call.args) == 3
    return runner, call.kwargs


@pytest.mark.parametrize("model, parameter", MODELS.items())
def test_a_text_model_is_called_with_what_it_takes(model, parameter):
    """NemotronH and Qwen3-Next died at warm-up: unexpected keyword argument 'input_embeds'."""
    assert captured(model)[1] == ({parameter: None} if parameter else {})


@pytest.mark.parametrize("model, parameter", [item for item in MODELS.items() if item[1]])
def test_embeddings_arrive_under_the_name_the_model_uses(model, parameter):
    embeds = torch.ones(4, 8)
    kwargs = captured(model, embeds)[1]
    assert list(kwargs) == [parameter] and kwargs[parameter] is embeds


@pytest.mark.revision(">=0.5.15,<0.5.19")
@pytest.mark.parametrize("model, parameter", MODELS.items())
def test_a_replay_knows_where_the_model_hands_on_embeddings(model, parameter):
    """It copies those of the request to where the graph reads them. The set-up of the releases only
    knows "input_embeds"."""
    stack = double(model)
    stack.layers = [None]
    index = prefill.resolve(SimpleNamespace(model=stack))._input_embeds_arg_idx
    index = captured(model, _input_embeds_arg_idx=index)[0]._input_embeds_arg_idx
    names = list(inspect.signature(stack.forward).parameters)
    assert (None if index is None else names[index]) == parameter
