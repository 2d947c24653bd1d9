"""Mamba2 layers inside the breakable graph: their tables, launches, and what fills the tables."""

import os
import random
from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late
from packaging.version import Version

with late.modules():
    from sglang.srt.prefill_graph.captured import layers, mamba2, tables
    from sglang.srt.prefill_graph.kernels import ssd

pytestmark = [
    pytest.mark.revision(">=0.5.9,!=0.5.14.*,!=0.5.19.*,!=0.5.20.*,!=0.5.21.*"),
    pytest.mark.patch(
        "breakable/capture-layer-stack",
        "breakable/capture-recurrent-layers",
        "breakable/capture-mamba2-through-hook",
    ),
]

# Chunks of 16 rows, requests of three, of one, and of parts of one. Interpreted kernels are slow:
# each case is as small as what it shows.
REFERENCE = "compare_captured"
CASES = {
    "a full table": dict(batches=[([3, 7, 2], [0, 1, 0])], rows=16, places=3),
    "cached beginnings": dict(batches=[([33, 1, 2, 3, 16], [0, 3, 5, 1, 0])], rows=64, places=6),
    "short requests": dict(batches=[([1, 2, 3, 1], [0, 0, 0, 9])], rows=16, places=4),
    "one batch after the other": dict(
        batches=[([17, 1, 3], [7, 3, 0]), ([32], [0]), ([9], [5])], rows=32, places=3
    ),
    "chunks of 128": dict(batches=[([131, 3], [0, 2])], rows=136, places=3, chunk=128),
    "the next norm sums over the ranks": dict(
        batches=[([3], [0])], rows=16, places=2, fuses_reduce=True
    ),
    "projected columns have factors": dict(
        batches=[([18, 3], [7, 0])], rows=32, places=2, factors=True
    ),
}


if Version(os.environ["PATCHQUEUE_REVISION"]) >= Version("0.5.19"):
    # the release's mixer does not scan with the kernels of the queue
    CASES = {name: case | dict(eagerly=False) for name, case in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_an_eager_prefill_bit_for_bit(case, compared):
    """NaN stands behind every batch. From the plain mixer, which has the weights of the release's,
    they differ as float32 does."""
    found = compared[case]
    assert found["bits"] == found["others"] == 0
    assert all(found[name] < 1e-3 for name in ("output", "conv", "ssm")), found


def test_only_its_own_kernels_are_launched(compared):
    names = [name for name in compared["a full table"]["launched"] if "norm" not in name]
    assert names == ["_convolve_kernel", "_steps_kernel", "_states_kernel", "_scan_kernel"]


def test_the_last_projection_sums_over_the_ranks_unless_the_next_norm_does(compared):
    told = {case: found["told"] for case, found in compared.items()}
    assert told.pop("the next norm sums over the ranks") == {"skip_all_reduce": True}
    assert not any(told.values())


def test_tables_are_the_plan_of_the_batch_and_the_rows_behind_it():
    """Of 300 random batches (the plan: test_mamba2_scan.py). What is left over has no rows."""
    for seed in range(300):
        source = random.Random(seed)
        chunk, places = source.choice([16, 64, 128]), source.randint(1, 12)
        count, longest = source.randint(1, places), (3 if seed % 50 else 40) * chunk
        lengths = [
            source.choice([1, source.randint(1, 40), source.randint(1, longest)])
            for _ in range(count)
        ]
        total, left = sum(lengths), places - count
        tokens = total + source.choice([0, 1, source.randint(0, 3 * chunk)])
        goes_on = [source.random() < 0.5 for _ in lengths]
        made, warm = tables.cut(lengths, goes_on, tokens, places, chunk)
        plan = ssd.plan(lengths, chunk, torch.device("cpu"))
        assert made.cu.tolist() == plan.cu.tolist() + [total] * left
        assert made.first.tolist() == plan.first.tolist() + [plan.chunks] * left
        real, behind = slice(plan.chunks), slice(plan.chunks, None)
        assert made.start[real].tolist() == plan.start.tolist()
        assert made.size[real].tolist() == plan.size.tolist()
        owners = [i for i, length in enumerate(lengths) for _ in range(0, length, chunk)]
        assert made.owner[real].tolist() == owners
        pairs = list(zip(made.start[behind].tolist(), made.size[behind].tolist(), strict=True))
        rows = [row for start, size in pairs for row in range(start, start - size)]
        assert rows == list(range(total, tokens))
        assert all(-chunk <= size <= 0 for _, size in pairs)
        assert warm.tolist() == [*map(int, goes_on), *[0] * left]


def test_a_batch_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="3 requests of 12 rows, for 2 of 32"):
        tables.cut([5, 4, 3], [False] * 3, 32, 2, 16)
    with pytest.raises(ValueError, match="1 requests of 33 rows, for 2 of 32"):
        tables.cut([33], [False], 32, 2, 16)


def test_the_next_batch_leaves_alone_what_is_still_being_copied():
    """With the overlap schedule the host prepares one forward while another's copy may wait."""
    made = tables.Tables(32, 4, 16, torch.device("cpu"))
    copies = []
    made._packed = SimpleNamespace(
        device=torch.device("cpu"), copy_=lambda host, non_blocking: copies.append(host)
    )
    made.fill([20, 3], [False, True], torch.tensor([1, 2]))
    first = copies[0].clone()
    made.fill([1, 1, 7], [True, False, False], torch.tensor([3, 1, 2]))
    assert torch.equal(copies[0], first) and not torch.equal(copies[1], first)


def test_a_short_request_writes_no_row_but_its_own():
    """Whichever of its neighbours a GPU runs first, and behind the batch."""
    cases = {f"{rows} rows": dict(rows=rows) for rows in (1, 2, 3, 4)}
    compared = interpreted.run("host.references.compare_convolution", cases)
    assert compared == dict.fromkeys(cases, True)


def test_a_size_has_a_place_for_each_row_up_to_64():
    made = [layers.Captured(None).tables(tokens, "cpu") for tokens in (1, 8, 63, 64, 4096)]
    assert [one.requests for one in made] == [1, 8, 63, 64, 64]


def test_a_capture_within_a_capture_gives_the_outer_tables_back():
    made = tables.Tables(16, 1, 16, torch.device("cpu"))
    assert tables.current() is None
    with tables.capturing_into(made, None):
        with tables.capturing_into(None, None):
            assert tables.current() is None
        assert tables.current().tables is made
    assert tables.current() is None


def test_a_mixer_that_the_kernels_do_not_serve_stays_a_break(monkeypatch):
    tiles = {}, {}
    monkeypatch.setattr(mamba2.mamba2_scan, "tiles_of", lambda *_: tiles)
    monkeypatch.delenv("SGLANG_MAMBA2_SCAN", raising=False)
    conv1d = SimpleNamespace(weight=torch.zeros(96, 1, 4))
    mixer = SimpleNamespace(activation="silu", conv1d=conv1d, n_groups=2, tp_size=1)
    states = torch.zeros(3, 4, 16, 32)

    def why_not(states):
        return mamba2.why_not(mixer, SimpleNamespace(temporal=states), torch.float16)

    assert why_not(states) is None
    turned = states.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert turned.shape == states.shape
    assert why_not(turned) == (
        "its scan has no tiles for heads of (16, 32) in torch.float16 on this GPU"
    )
    monkeypatch.setenv("SGLANG_MAMBA2_SCAN", "release")
    assert why_not(states) == "SGLANG_MAMBA2_SCAN=release is set"
