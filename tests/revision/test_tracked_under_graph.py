"""Which states a prefill leaves for the prefix cache through a graph: those that it leaves eagerly.

The release's own runners make the batch that breaks read; no graph is behind them
(host/replayed.py).
"""

from types import SimpleNamespace

import pytest
import torch
from host import graph, process, replayed, waits

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.18,!=0.5.11.*,!=0.5.12.*")

# the breakable graph of 0.5.9 and 0.5.10 is the queue's, whose breaks get the batch itself
KINDS = ["piecewise", pytest.param("breakable", marks=pytest.mark.revision(">=0.5.13"))]
DRAFTS = {"none": None, "EAGLE": "EAGLE", "NGRAM": "NGRAM"}
FIELDS = ("mamba_track_mask", "mamba_track_indices", "mamba_track_seqlens")


def batch_of(lengths, tracked):
    """A prefill of requests with so many new tokens; `tracked`: which of them leave a state, None
    for a batch that says nothing."""
    slots = torch.arange(10, 10 + len(lengths))
    said = (torch.tensor(tracked), slots, torch.tensor(lengths)) if tracked else ()
    return graph.batch_of(lengths, **dict(zip(FIELDS, said)))


def said_by(batch):
    values = [getattr(batch, name) for name in FIELDS]
    return [None if value is None else value.tolist() for value in values]


def asked_of(batch):
    """The ops in which a GPU would let the host wait, where a layer asks which states to leave."""
    with waits.MaskReads() as reads:
        batch.mamba_track_mask.any(), batch.mamba_track_mask.nonzero()
    return reads.names


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("kind", KINDS)
def test_breaks_know_which_states_to_leave(kind, drafts):
    """And no layer asks the GPU for them."""
    told = []
    runner = replayed.Replays(kind, replayed.NoAttention(), told.append, DRAFTS[drafts])
    for lengths, tracked in (
        ([70, 5, 66], [True, False, True]),
        ([90], [True]),
        ([3, 4], [False, False]),
    ):
        batch = batch_of(lengths, tracked)
        wanted = said_by(batch)
        runner.run(batch)
        [seen] = told
        assert asked_of(seen) == [] and said_by(seen) == wanted
        told.clear()


class Translating:
    """Prepares as the backends do from 0.5.15 on, over a pool whose slots have other names."""

    def init_forward_metadata(self, batch):
        batch.mamba_track_indices = batch.mamba_track_indices + 100


@pytest.mark.revision(">=0.5.15")
@pytest.mark.parametrize("kind", KINDS)
def test_breaks_leave_states_where_the_pool_has_them(kind):
    told = []
    replayed.Replays(kind, Translating(), told.append).run(batch_of([70, 5], [True, False]))
    assert told[0].mamba_track_indices.tolist() == [110, 111]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_leaves_no_state_gets_none_of_the_one_before(kind):
    """Drafts that are verified; a batch before them left its mask in the runner's buffers."""
    told = []
    runner = replayed.Replays(kind, replayed.NoAttention(), told.append)
    runner.run(batch_of([70, 66], [True, True]))
    runner.run(batch_of([9, 9], None))
    assert said_by(told.pop()) == [None, None, None]


@pytest.mark.revision(">=0.5.17")
@pytest.mark.parametrize("kind, keeps", [("NemotronH", True), ("DeepseekV4", False)])
def test_a_replay_leaves_these_states_so_nemotron_h_keeps_the_breakable_graph(kind, keeps):
    """The rules that turn the graph off for other models stay."""
    from sglang.srt.model_executor.cuda_graph_config import Backend

    args, prefill = process.default_server_args(), SimpleNamespace(backend=Backend.BREAKABLE)
    config = SimpleNamespace(architectures=[f"{kind}ForCausalLM"])
    args.cuda_graph_config = SimpleNamespace(prefill=prefill)
    args.model_config = SimpleNamespace(attention_arch=None, hf_config=config, is_multimodal=False)
    args._disable_breakable_cudagraph_if_incompatible()
    assert (prefill.backend == Backend.BREAKABLE) is keeps
