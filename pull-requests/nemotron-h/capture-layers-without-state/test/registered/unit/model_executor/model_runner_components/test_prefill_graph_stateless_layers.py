"""Which decoder layers keep a model from the prefill graph: those that keep state and have no break. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class _Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down_proj = torch.nn.Identity()


class _Moe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.Identity()


class _Mamba(torch.nn.Module):
    pass


class _Layer(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer()


def _stack(mixers):
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(_Layer(mixer) for mixer in mixers)
    return model


def _set_up(mixers):
    """What the set-up returns for a model whose Mamba layers alone have a break."""
    model = torch.nn.Module()
    model.model = _stack(mixers)
    entries = [
        layer if isinstance(layer.mixer, _Mamba) else None
        for layer in model.model.layers
    ]
    config = SimpleNamespace(
        prefill=SimpleNamespace(bs=[64], backend="breakable"),
    )
    execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
    ranks = SimpleNamespace(tp_rank=0, pp_size=1, enable_prefill_cp=False)
    none = [None] * len(mixers)
    runner = SimpleNamespace(
        model=model,
        is_draft_worker=False,
        spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
        lora_manager=None,
        device="cpu",
        gpu_id=0,
        model_config=SimpleNamespace(context_len=4096),
        req_to_token_pool=SimpleNamespace(size=8),
        layer_info=SimpleNamespace(start_layer=0, end_layer=len(mixers)),
        get_cuda_graph_layers=lambda stack: (entries, none, none, none, none),
    )
    stand_ins = {
        "check_cuda_graph_backend": lambda *_: False,
        "get_exec": lambda: execution,
        "get_parallel": lambda: ranks,
        "get_available_gpu_memory": lambda *_, **__: 80.0,
        "index_attention_layers_by_global_id": lambda layers, others, _: (
            layers,
            others,
        ),
        "PrefillCudaGraphRunner": lambda model_runner: "captured",
    }
    with mock.patch.multiple(cuda_graph_setup, **stand_ins):
        return cuda_graph_setup.capture_prefill_graph(
            model_runner=runner, eager_runner="eager"
        )


def _offender(mixers, start=0, end=None, breakable=True, broken=(_Mamba,)):
    """broken: the mixers that have a break, and so an entry in attention_layers."""
    model = _stack(mixers)
    entries = [layer if isinstance(layer.mixer, broken) else None for layer in model.layers]
    return cuda_graph_setup.first_layer_without_break(
        layer_model=model,
        attention_layers=entries,
        start_layer=start,
        end_layer=len(mixers) if end is None else end,
        breakable=breakable,
    )


class TestStatelessLayers(CustomTestCase):
    def test_the_set_up_captures_a_model_that_has_such_layers(self):
        self.assertEqual(_set_up([_Mamba, _Mlp, _Moe]).runner, "captured")

    def test_mlp_and_moe_blocks_need_no_break(self):
        self.assertIsNone(_offender([_Mamba, _Mlp, _Moe, _Mamba]))

    def test_only_the_breakable_graph_captures_them(self):
        text = _offender([_Mamba, _Mlp], breakable=False)
        self.assertEqual(text, "decoder layer 1 (_Layer)")

    def test_a_mixer_with_state_and_no_break_is_named(self):
        text = _offender([_Mlp, _Mamba], broken=())
        self.assertEqual(text, "decoder layer 1 (_Layer)")

    def test_layers_of_other_pipeline_ranks_do_not_count(self):
        self.assertIsNone(_offender([_Mamba, _Mlp], start=1, end=2, broken=()))

    def test_a_layer_that_is_not_there_is_named(self):
        self.assertEqual(_offender([_Mlp], end=2), "decoder layer 1 (missing)")


if __name__ == "__main__":
    unittest.main()
