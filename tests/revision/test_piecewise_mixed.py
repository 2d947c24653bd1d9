"""Batches of --enable-mixed-chunk in the piecewise graph: nothing is traced anew for them.

The release's own runner makes the batch that traced code reads; no graph is behind it
(host/replayed.py).
"""

import pytest
import torch
from host import graph, late, replayed

with late.modules():
    from sglang.srt.model_executor import forward_batch_info

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.14")


class Attention:
    """Notes the modes that it prepares for."""

    def __init__(self):
        self.modes = []

    def init_forward_metadata(self, batch):
        self.modes.append(batch.forward_mode)


def batch_of(mode):
    """A prefill of three and six tokens."""
    return graph.prefill_batch(
        9,
        batch_size=2,
        input_ids=torch.arange(9),
        positions=torch.arange(9),
        out_cache_loc=torch.arange(9),
        seq_lens=torch.tensor([3, 6]),
        forward_mode=mode,
    )


def test_a_batch_that_also_decodes_runs_what_was_traced_for_prefills():
    traced, attention = [], Attention()

    def note(graph_module, _):
        traced.append(graph_module)
        return graph_module.forward

    @torch.compile(backend=note)
    def layers(batch):
        """As RadixAttention asks for the mode where it is traced."""
        return batch.positions + 1 if batch.forward_mode.is_extend() else batch.positions

    torch._dynamo.reset()
    runner = replayed.Replays("piecewise", attention, layers)
    for mode in (
        forward_batch_info.ForwardMode.EXTEND,
        forward_batch_info.ForwardMode.MIXED,
        forward_batch_info.ForwardMode.EXTEND,
    ):
        batch = batch_of(mode)
        runner.run(batch)
        assert batch.forward_mode is mode  # the scheduler's batch, which sampling reads
    assert attention.modes == [
        forward_batch_info.ForwardMode.EXTEND,
        forward_batch_info.ForwardMode.MIXED,
        forward_batch_info.ForwardMode.EXTEND,
    ]
    assert len(traced) == 1
