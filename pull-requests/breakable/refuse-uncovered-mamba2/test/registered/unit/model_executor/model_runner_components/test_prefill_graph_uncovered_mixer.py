"""A Mamba2 mixer outside of every graph break keeps its model from the prefill graph. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention.mamba import mamba
from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class _Mixer(torch.nn.Module):
    """In place of MambaMixer2, which needs a configuration and ranks."""


class _Attention(torch.nn.Module):
    pass


class _BesideAttention(torch.nn.Module):
    """As in Falcon-H1: attention makes a break, the mixer beside it does not."""

    def __init__(self):
        super().__init__()
        self.attn = _Attention()
        self.mamba = _Mixer()


class _Alone(torch.nn.Module):
    """As in NemotronH: the layer itself makes the break."""

    def __init__(self):
        super().__init__()
        self.mixer = _Mixer()


def _entry(layer):
    return getattr(layer, "attn", layer)


class TestUncoveredMixer(CustomTestCase):
    def setUp(self):
        stand_in = mock.patch.object(mamba, "MambaMixer2", _Mixer)
        stand_in.start()
        self.addCleanup(stand_in.stop)

    def _set_up(self, *kinds):
        """What the set-up returns and the warnings that it logs."""
        model = torch.nn.Module()
        model.model = torch.nn.Module()
        model.model.layers = torch.nn.ModuleList(kind() for kind in kinds)
        entries = [_entry(layer) for layer in model.model.layers]
        config = SimpleNamespace(
            prefill=SimpleNamespace(bs=[64], backend="breakable"),
        )
        execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
        ranks = SimpleNamespace(tp_rank=0, pp_size=1, enable_prefill_cp=False)
        none = [None] * len(kinds)
        runner = SimpleNamespace(
            model=model,
            is_draft_worker=False,
            spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
            lora_manager=None,
            device="cpu",
            gpu_id=0,
            model_config=SimpleNamespace(context_len=4096),
            req_to_token_pool=SimpleNamespace(size=8),
            layer_info=SimpleNamespace(start_layer=0, end_layer=len(kinds)),
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
        warning = mock.patch.object(cuda_graph_setup.logger, "warning")
        with mock.patch.multiple(cuda_graph_setup, **stand_ins), warning as warned:
            result = cuda_graph_setup.capture_prefill_graph(
                model_runner=runner, eager_runner="eager"
            )
        return result.runner, [call.args[1] for call in warned.call_args_list]

    def test_a_mixer_beside_attention_is_refused_by_name(self):
        runner, named = self._set_up(_Alone, _BesideAttention)
        self.assertIsNone(runner)
        self.assertEqual(named, ["decoder layer 1 (_BesideAttention)"])

    def test_a_mixer_that_makes_a_break_is_captured(self):
        self.assertEqual(self._set_up(_Alone, _Alone), ("captured", []))


if __name__ == "__main__":
    unittest.main()
