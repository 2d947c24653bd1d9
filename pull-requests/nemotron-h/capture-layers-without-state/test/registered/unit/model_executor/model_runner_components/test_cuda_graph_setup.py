"""CPU tests of which decoder layers the prefill CUDA graph captures."""

import sys
from types import SimpleNamespace

import pytest

from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.srt.models.nemotron_h import NemotronHModel
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


def _covers_nemotron_h(pattern, *, unknown=()):
    """Whether the graph handles this pattern. unknown: layers without handlers."""
    config = SimpleNamespace(hybrid_override_pattern=pattern)
    model = SimpleNamespace(config=config)
    stateful = [kind in "M*" and i not in unknown for i, kind in enumerate(pattern)]
    return cuda_graph_setup.has_hybrid_graph_handlers(
        attention_layers=[object() if state else None for state in stateful],
        moe_layers=[object() if kind == "E" else None for kind in pattern],
        start_layer=0,
        end_layer=len(pattern),
        stateless_layers=NemotronHModel.stateless_layers.fget(model),
    )


@pytest.mark.parametrize("pattern", ["M-M*M-", "MEM*EM", "M*-E"])
def test_hybrid_graph_handlers_cover_mlp_and_moe_layers_of_nemotron_h(pattern):
    assert _covers_nemotron_h(pattern)


def test_hybrid_graph_handlers_reject_a_stateful_layer_without_handler():
    assert not _covers_nemotron_h("M-M*M-", unknown=[2])


def test_nemotron_h_supports_the_hybrid_prefill_graph_on_every_gpu():
    assert NemotronHModel.supports_hybrid_prefill_graph.fget(None)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-v"]))
