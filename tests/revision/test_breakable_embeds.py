"""How the breakable runner hands embeddings to the layer stack it captures."""

import importlib
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.14")

MODELS = {  # layer stack -> the name of its embeddings parameter
    "nemotron_h.NemotronHModel": "inputs_embeds",
    "qwen3_next.Qwen3NextModel": "inputs_embeds",
    "commandr.CohereModel": None,
    "phi3_small.Phi3SmallModel": "inputs_embeds",  # without a default
    "llama.LlamaModel": "input_embeds",
    "qwen3.Qwen3Model": "input_embeds",
}


def run_forward(model, input_embeds):
    """The runner's own forward on a double with the real signature; returns what the model was called with."""
    from sglang.srt.layers.dp_attention import DpPaddingMode
    from sglang.srt.model_executor.breakable_cuda_graph_runner import (
        BreakableCudaGraphRunner,
    )

    module, name = model.split(".")
    stack = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
    runner = object.__new__(BreakableCudaGraphRunner)
    runner.layer_model = SimpleNamespace(forward=create_autospec(stack, instance=True).forward)
    runner.attention_layers, runner.moe_layers, runner.moe_fusions = [], [], []
    runner.quant_config = None
    batch = SimpleNamespace(
        input_ids=torch.arange(4),
        positions=torch.arange(4),
        input_embeds=input_embeds,
        dp_padding_mode=DpPaddingMode.MAX_LEN,
    )
    runner._run_forward(batch, 4)
    (call,) = runner.layer_model.forward.call_args_list
    assert call.args[0] is batch.input_ids
    assert call.args[1] is batch.positions
    assert call.args[2] is batch
    assert len(call.args) == 3
    return call.kwargs


@pytest.mark.parametrize("model, parameter", MODELS.items())
def test_a_text_model_is_called_with_what_it_takes(model, parameter):
    """NemotronH and Qwen3-Next died at warm-up: unexpected keyword argument 'input_embeds'."""
    assert run_forward(model, None) == ({parameter: None} if parameter else {})


@pytest.mark.parametrize("model, parameter", [item for item in MODELS.items() if item[1]])
def test_embeddings_arrive_under_the_name_the_model_uses(model, parameter):
    embeds = torch.ones(4, 8)
    kwargs = run_forward(model, embeds)
    assert list(kwargs) == [parameter] and kwargs[parameter] is embeds
