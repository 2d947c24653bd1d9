"""The states that a prefill through the breakable graph leaves for the prefix cache, where Mamba2
layers are captured.

0.5.13 is the first release that keeps states of Mamba2 prefills (extra_buffer). From 0.5.15 to
0.5.18 the release's own runner fills the tables, where it is asked to.
"""

from types import SimpleNamespace

import pytest
import torch
from host import late, launches

with late.modules():
    from sglang.srt.prefill_graph.captured import layers, tables
    from sglang.srt.prefill_graph.kernels import convolution

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
