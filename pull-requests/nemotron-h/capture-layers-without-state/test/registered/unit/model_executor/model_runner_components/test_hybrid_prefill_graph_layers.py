"""Which decoder layers the prefill CUDA graph captures. No GPU."""

import unittest
from types import SimpleNamespace

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.srt.models.nemotron_h import NemotronHModel

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class TestHybridPrefillGraphLayers(CustomTestCase):
    def _covers(self, pattern, *, unknown=()):
        """Whether the graph handles this pattern. unknown: layers without handlers."""
        config = SimpleNamespace(hybrid_override_pattern=pattern)
        model = SimpleNamespace(config=config)
        stateful = [
            kind in "M*" and layer not in unknown for layer, kind in enumerate(pattern)
        ]
        return cuda_graph_setup.has_hybrid_graph_handlers(
            attention_layers=[object() if state else None for state in stateful],
            moe_layers=[object() if kind == "E" else None for kind in pattern],
            start_layer=0,
            end_layer=len(pattern),
            stateless_layers=NemotronHModel.stateless_layers.fget(model),
        )

    def test_mlp_and_moe_layers_of_nemotron_h_are_covered(self):
        for pattern in ("M-M*M-", "MEM*EM", "M*-E"):
            self.assertTrue(self._covers(pattern), pattern)

    def test_a_stateful_layer_without_handler_is_not(self):
        self.assertFalse(self._covers("M-M*M-", unknown=[2]))

    def test_nemotron_h_supports_the_graph_on_every_gpu(self):
        self.assertTrue(NemotronHModel.supports_hybrid_prefill_graph.fget(None))


if __name__ == "__main__":
    unittest.main()
