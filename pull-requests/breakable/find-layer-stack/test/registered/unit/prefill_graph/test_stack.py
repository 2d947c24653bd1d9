"""Where the prefill graph looks for a model's decoder layers, and what it says where there are none. No GPU."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.srt.model_executor.runner import prefill_cuda_graph_runner

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class _Module(torch.nn.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def _stack():
    return _Module(layers=torch.nn.ModuleList([torch.nn.Identity()]))


def _resolve(model):
    return prefill_cuda_graph_runner._resolve_transformer_layer_model(model)


class TestLayerStack(CustomTestCase):
    def test_wrappers_are_followed_inwards(self):
        stack = _stack()
        for model in (
            _Module(model=stack),
            _Module(language_model=stack),
            _Module(language_model=_Module(model=stack)),
            _Module(language_model=_Module(model=_Module(model=stack))),
            _Module(thinker=_Module(model=stack)),
        ):
            with self.subTest(model=str(model)):
                self.assertIs(_resolve(model), stack)

    def test_a_model_can_name_its_stack(self):
        stack, other = _stack(), _stack()
        model = _Module(model=other)
        model.get_layer_stack = lambda: stack
        self.assertIs(_resolve(model), stack)

    def test_a_model_that_points_back_at_itself_ends_the_search(self):
        model = _Module()
        object.__setattr__(model, "model", model)
        with self.assertRaisesRegex(LookupError, "no decoder layers in the model"):
            _resolve(model)

    def test_without_layers_the_set_up_stays_eager_and_says_what_it_probed(self):
        model = _Module(language_model=_Module(model=_Module()))
        with self.assertLogs("sglang", "WARNING") as logs:
            found = self._set_up(model)
        self.assertIsNone(found.runner)
        [text] = logs.output
        self.assertIn("language_model.model (_Module)", text)

    @staticmethod
    def _set_up(model):
        config = SimpleNamespace(
            prefill=SimpleNamespace(bs=[64], backend="breakable"),
        )
        ranks = SimpleNamespace(tp_rank=0, pp_size=1, enable_prefill_cp=False)
        runner = SimpleNamespace(
            model=model,
            is_draft_worker=False,
            spec_algorithm=SimpleNamespace(is_eagle=lambda: False),
            lora_manager=None,
        )
        execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=config))
        with (
            mock.patch.object(
                cuda_graph_setup, "check_cuda_graph_backend", lambda *_: False
            ),
            mock.patch.object(cuda_graph_setup, "get_exec", lambda: execution),
            mock.patch.object(cuda_graph_setup, "get_parallel", lambda: ranks),
            mock.patch("sglang.srt.prefill_graph.model.stack.get_parallel", lambda: ranks),
        ):
            return cuda_graph_setup.capture_prefill_graph(
                model_runner=runner, eager_runner=object()
            )


if __name__ == "__main__":
    unittest.main()
