"""The states that a prefill through the breakable graph leaves for the prefix cache, where Mamba2
layers are captured.

0.5.13 is the first release that keeps states of Mamba2 prefills (extra_buffer). From 0.5.15 to
0.5.18 the release's own runner fills the tables, where it is asked to.
"""

import random
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from host import late, launches

with late.modules():
    from sglang.srt.prefill_graph.captured import layers, tables
    from sglang.srt.prefill_graph.kernels import convolution, tracked_states

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.19,!=0.5.14.*")

# (lengths, cached tokens, behind how many new tokens a state is left)
SOME = ([37, 5, 16], [0, 0, 0], [37, -1, 16])
BEHIND_CACHED = ([21, 9, 20], [7, 3, 16], [21, -1, 20])
SILENT, NONE = ([33, 16], [0, 16], None), ([20, 7], [0, 4], [-1, -1])
REFERENCE = "compare_captured"
CASES = {
    "no request": dict(batches=[NONE], rows=32, places=4),
    "to the last row of a full size": dict(batches=[([32], [4], [32])], rows=32, places=2),
    "where requests branch": dict(
        batches=[([50, 3, 17], [0, 1, 16], [17, -1, 17])], rows=80, places=3
    ),
    "one batch after the other": dict(
        batches=[SOME, SILENT, BEHIND_CACHED, NONE], rows=64, places=8
    ),
    "larger steps than chunks": dict(
        batches=[([38, 3, 32], [32, 0, 0], [38, -1, 32])], rows=80, places=4, step=32
    ),
    "chunks of 128": dict(batches=[([131], [2], [131])], rows=144, places=2, chunk=128),
}
LEFT = [0, 1, 2, 4, 2, 1]


@pytest.mark.parametrize("case, left", zip(CASES, LEFT), ids=str)
def test_states_are_those_that_an_eager_prefill_leaves_bit_for_bit(case, left, compared):
    found = compared[case]
    assert found["left"] == left
    assert found["bits"] == 0
    assert found["others"] == 0
    assert found["left_conv"] < 1e-5 and found["left_ssm"] < 1e-3, found


def test_a_server_that_keeps_states_launches_one_kernel_more(compared):
    names = [name for name in compared["no request"]["launched"] if "norm" not in name]
    own = ["_convolve_kernel", "_window_kernel", "_steps_kernel", "_states_kernel", "_scan_kernel"]
    assert names == own


def test_another_server_has_no_columns_for_them():
    made = layers.Captured(None).tables(64, "cpu")
    assert made.plan.track_rows is None and made.plan.track_slots is None
    silent = SimpleNamespace()  # without the fields: it is not asked
    layers.Captured(None).track(made, silent)
    assert torch.equal(
        layers.Captured(None, 128).tables(64, "cpu").plan.track_rows, torch.zeros(64)
    )


ASKED = dict(
    mamba_track_mask=[True, False, True, True],
    mamba_track_seqlens=[300, -1, 128, 128 + 129],
    mamba_track_indices=[11, 12, 13, 14],
    extend_prefix_lens=[0, 40, 0, 128],
    extend_seq_lens=[300, 9, 128, 200],
)


def told(device):
    """A size's tables on `device`, behind a batch that asks for states."""
    captured = layers.Captured(None, 128)
    made = captured.tables(1024, device)
    asked = {name: torch.tensor(values).to(device) for name, values in ASKED.items()}
    slots = torch.tensor([1, 2, 3, 4]).to(device)
    made.fill(ASKED["extend_seq_lens"], [False, True, False, True], slots)
    captured.track(made, SimpleNamespace(**asked))
    return made


def test_a_state_is_kept_behind_the_last_whole_step_or_where_requests_branch():
    made = told("cpu")
    assert made.plan.track_rows.tolist() == [256, 0, 128, 128] + [0] * (made.requests - 4)
    assert made.plan.track_slots[[0, 2, 3]].tolist() == [11, 13, 14]


def test_the_host_does_not_wait_for_what_the_batch_asks():
    """Of tensors on "meta" nobody can read a value."""
    made = told("meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        made.plan.track_rows.tolist()


@pytest.mark.revision("<0.5.14")  # nothing of the release is asked
def test_states_of_300_batches_are_kept_behind_the_rows_that_eager_prefill_keeps_them_behind():
    """What the metadata of an eager prefill says, asked as the scheduler asks: of a last whole
    step, or of where requests branch."""
    for seed in range(300):
        source = random.Random(seed)
        longest = source.choice([1, 40, 300, 5000])
        lengths = [source.randint(1, longest) for _ in range(source.randint(1, 12))]
        tokens = sum(lengths) + source.choice([0, 1, source.randint(0, 600)])
        step = source.choice([128, 256, 512])
        prefixes = [source.choice([0, step, 3 * step]) for _ in lengths]
        asked = [drawn(source, length, step) for length in lengths]
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


def drawn(source, length, step):
    """What the scheduler asks for a request of `length` new tokens: behind how many, and one more
    where more follow that belong to whole steps; -1: none."""
    if length < step:
        return -1
    steps = length // step
    branch = source.choice([None, source.randint(1, steps)])
    return length if branch in (None, steps) else branch * step + 1


@pytest.mark.parametrize("pool", ["bfloat16", "float32"])
def test_the_kernel_of_windows_compiles(pool, monkeypatch):
    """For Nemotron-Nano-9B-v2's columns of its projection."""
    noted, features = [], 128 * 80 + 2 * 8 * 128
    kernel = launches.Recorder(convolution._window_kernel, noted)
    monkeypatch.setattr(convolution, "_window_kernel", kernel)
    projected = torch.empty(64, 2 * 128 * 80 + 2 * 8 * 128 + 128, dtype=torch.bfloat16)
    windows = torch.empty(5, features, 3, dtype=getattr(torch, pool))
    plan = tables.Tables(64, 8, 128, torch.device("cpu"), tracks=True).plan
    convolution.keep_windows(projected[:, 128 * 80 : 128 * 80 + features], windows, plan)
    assert noted[0].compiled(90).spilled == 0
