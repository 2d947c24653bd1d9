"""Which decoder layers keep a model from the prefill graph: those that keep state and have no break. No GPU."""

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components.cuda_graph_setup import (
    first_layer_without_break,
)

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


def _offender(mixers, start=0, end=None, breakable=True, broken=(_Mamba,)):
    """broken: the mixers that have a break, and so an entry in attention_layers."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(_Layer(mixer) for mixer in mixers)
    entries = [layer if isinstance(layer.mixer, broken) else None for layer in model.layers]
    return first_layer_without_break(
        layer_model=model,
        attention_layers=entries,
        start_layer=start,
        end_layer=len(mixers) if end is None else end,
        breakable=breakable,
    )


class TestStatelessLayers(CustomTestCase):
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
