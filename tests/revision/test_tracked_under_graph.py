"""Which states a prefill leaves for the prefix cache through a graph: those that it leaves eagerly.

The release's own runners make the batch that breaks read; no graph is behind them
(host/replayed.py).
"""

import pytest
import torch
from host import graph, interpreted, replayed
from test_tracked_states import assert_left

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


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("kind", KINDS)
def test_breaks_know_which_states_to_leave(kind, drafts):
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
        assert said_by(told.pop()) == wanted


class Translating:
    """Prepares a batch as the backends do from 0.5.15 on, over a pool whose slots have other
    names."""

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


def prefills(cases, kinds):
    return {
        f"{name}, {kind}, drafts: {drafts}": dict(case, through=kind, speculative=speculative)
        for name, case in cases.items()
        for kind in kinds
        for drafts, speculative in DRAFTS.items()
        if drafts != "NGRAM"
    }


# chunks of 16 tokens
MAMBA2 = prefills(
    {
        "one request": dict(lengths=[40], prefixes=[0]),
        "behind cached beginnings, one too short": dict(lengths=[21, 40, 9], prefixes=[16, 0, 32]),
    },
    ["piecewise", "breakable"],
)
# chunks of 64 tokens
GDN = {
    "two that leave a state, one too short, with drafts": dict(
        lengths=[64, 67, 9], prefixes=[0, 64, 0], through="piecewise", speculative="EAGLE"
    )
}


@pytest.fixture(scope="module")
def mamba2():
    return interpreted.run("host.references.compare_tracked", MAMBA2)


@pytest.fixture(scope="module")
def gdn():
    return interpreted.run("host.references.compare_tracked_gdn", GDN)


@pytest.mark.revision(">=0.5.13")
@pytest.mark.parametrize("case", MAMBA2)
def test_mamba2_leaves_the_states_of_each_requests_own_tokens(case, mamba2):
    """Largest differences from the plain reference in float32; states are of order 10."""
    found = mamba2[case]
    assert_left(found, MAMBA2[case])
    assert found["waits"] == []  # on a GPU each would make the host wait


@pytest.mark.revision("<0.5.11")
@pytest.mark.parametrize("case", GDN)
def test_gdn_leaves_the_states_of_each_requests_own_tokens(case, gdn):
    """Largest differences of float16 kernels from a float32 reference."""
    found = gdn[case]
    assert found["own"] < 0.01 and found["left"] < 0.01 and found["others"] == 0, found
    assert found["waits"] == [[], []]
