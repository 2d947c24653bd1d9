"""Captured Mamba2 layers in any company: alone or among others, in any size, at once or in parts;
and their tables' columns."""

import random
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.prefill_graph.captured import layers
    from sglang.srt.prefill_graph.kernels import tracked_states

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")

REFERENCE = "compare_captured_again"
CASES = {
    "cold and behind cached beginnings": dict(
        lengths=[18, 1, 17, 3], prefixes=[0, 5, 9, 0], sizes=[48, 64]
    ),
}


# the kernels are this package's: 17 s of interpreting them on two releases are enough
ONE = pytest.mark.revision("<0.5.11")


WAYS = {
    "alone": "a request alone has the bits that it has among others",
    "order": "the order of the batch changes nothing",
    "sizes": "every size behind every other gives the same bits",
    "parts": "a request in two parts, cut at a chunk, has the bits of one at once",
}


@ONE
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_request_has_the_same_bits(case, way, compared):
    assert compared[case][way] == 0, WAYS[way]


@ONE
@pytest.mark.parametrize("case", CASES)
def test_nothing_comes_from_where_nan_stands_and_no_other_slot_changes(case, compared):
    """Behind the batch, in the slots of others, and in those that requests do not go on from."""
    assert compared[case]["finite"] and compared[case]["others"] == 0


def drawn(seed):
    """A batch of long and short requests: lengths up to 5000, who goes on, and how many rows the
    size has."""
    source = random.Random(seed)
    longest = source.choice([1, 40, 300, 5000])
    lengths = [source.randint(1, longest) for _ in range(source.randint(1, 12))]
    warm = [source.random() < 0.5 for _ in lengths]
    return lengths, warm, sum(lengths) + source.choice([0, 1, source.randint(0, 600)])


@pytest.mark.revision(">=0.5.13")  # the first that keeps states of Mamba2 prefills
def test_states_of_300_batches_are_kept_behind_the_rows_that_eager_prefill_keeps_them_behind():
    """What the metadata of an eager prefill says, asked as the scheduler asks: of a last whole
    step, or of where requests branch."""
    for seed in range(300):
        source = random.Random(seed)
        lengths, _, tokens = drawn(seed)
        step = source.choice([128, 256, 512])
        prefixes = [source.choice([0, step, 3 * step]) for _ in lengths]
        asked = [wanted(source, length, step) for length in lengths]
        batch = SimpleNamespace(
            mamba_track_mask=torch.tensor([one > 0 for one in asked]),
            mamba_track_seqlens=torch.tensor(
                [one + prefix if one > 0 else -1 for one, prefix in zip(asked, prefixes)]
            ),
            mamba_track_indices=torch.arange(7, 7 + len(lengths)),
            extend_prefix_lens=torch.tensor(prefixes),
            extend_seq_lens=torch.tensor(lengths),
        )
        metadata = SimpleNamespace(
            track_ssm_h_src=torch.zeros(1), mixed_metadata=SimpleNamespace(chunk_size=128)
        )
        with mock.patch.object(tracked_states.ops, "mamba_cache_chunk_size", lambda: step):
            tracked_states.aim(metadata, batch)
        captured = layers.Captured(None, step)
        made = captured.tables(max(tokens, 16 * len(lengths)), "cpu")
        captured.track(made, batch)
        eager, count = metadata.wanted_states, len(lengths)
        kept = [one // step * step if one > 0 else 0 for one in asked]
        assert made.plan.track_rows.tolist() == eager.rows + [0] * (made.requests - count)
        assert eager.rows == [min(a, b) for a, b in zip(kept, lengths)]
        slots = made.plan.track_slots.tolist()
        assert [slot for slot, rows in zip(slots, eager.rows) if rows] == [
            slot for slot, rows in zip(eager.slots, eager.rows) if rows
        ]


def wanted(source, length, step):
    """What the scheduler asks for a request of `length` new tokens: behind how many, and one more
    where more follow that belong to whole steps; -1: none."""
    if length < step:
        return -1
    steps = length // step
    branch = source.choice([None, source.randint(1, steps)])
    return length if branch in (None, steps) else branch * step + 1
