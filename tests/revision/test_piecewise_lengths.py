"""Where the lengths of the batch are that the piecewise graph of 0.5.5 captures."""

from unittest import mock
from unittest.mock import MagicMock

import pytest
from host import late

with late.modules():
    from sglang.srt.model_executor import piecewise_cuda_graph_runner

pytestmark = pytest.mark.revision("<0.5.6")


class Made(Exception):
    """A batch was made; its argument holds of what."""


@pytest.mark.parametrize(
    "step, words, tokens", [("warmup_and_capture", (), 2), ("capture_one_batch_size", (4,), 4)]
)
def test_the_host_has_the_lengths_of_a_captured_batch(step, words, tokens):
    """The GPU is the default device there; "meta", which holds no numbers, stands in for it."""
    runner = object.__new__(piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner)
    runner.device, runner.pp_size = "meta", 1
    runner.model_runner = MagicMock(**{"server_args.enable_lora": False})
    for name in ("input_ids", "out_cache_loc", "out_cache_loc_swa", "positions"):
        setattr(runner, name, piecewise_cuda_graph_runner.torch.zeros(8))

    def record(**given):
        raise Made(given)

    with (
        mock.patch.object(piecewise_cuda_graph_runner, "ForwardBatch", record),
        pytest.raises(Made) as made,
    ):
        getattr(runner, step)(*words)
    assert made.value.args[0]["extend_seq_lens_cpu"].tolist() == [tokens]
