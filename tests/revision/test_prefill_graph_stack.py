"""A runner's decision about a model whose decoder layers are not where the release looks for
them."""

import logging
from types import SimpleNamespace

import pytest
from host import runner

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.14")
NOWHERE = SimpleNamespace(model=SimpleNamespace(), language_model=SimpleNamespace())
PROBED = (
    "no decoder layers in the model (SimpleNamespace), language_model (SimpleNamespace), model"
    " (SimpleNamespace)"
)


@pytest.mark.parametrize(
    "model, reason",
    [
        (NOWHERE, PROBED),
        (
            SimpleNamespace(layers=[SimpleNamespace()]),
            "the release does not look for decoder layers in the model itself",
        ),
    ],
    ids=["none", "elsewhere"],
)
def test_a_model_without_a_stack_prefills_eagerly_with_one_warning(caplog, model, reason):
    """It died at start: up to 0.5.9 with an AttributeError; later the line did not say what was
    looked at."""
    with caplog.at_level(logging.WARNING):
        made = runner.decide(model)
    assert made.piecewise_cuda_graph_runner is None
    assert [record.getMessage() for record in caplog.records] == [
        f"Prefill runs without a CUDA graph: {reason}"
    ]
