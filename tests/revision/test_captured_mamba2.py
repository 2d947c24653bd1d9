"""Mamba2 layers inside the breakable graph: their tables, their launches, and the runner that fills
the tables."""

import random
from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late

with late.modules():
    from sglang.srt.prefill_graph.captured import layers, mamba2, tables

pytestmark = pytest.mark.revision(">=0.5.9,!=0.5.14.*,!=0.5.19.*,!=0.5.20.*,!=0.5.21.*")

# chunks of 16 rows: requests of three and of two, whole ones, and parts of one
COLD, WARM = ([33, 5, 1, 16], [0, 0, 0, 0]), ([18, 1, 2, 3, 16], [7, 3, 5, 1, 0])
REFERENCE = "compare_captured"
CASES = {
    "a full table": dict(batches=[([3, 7, 2], [0, 1, 0])], rows=16, places=3),
    "cold": dict(batches=[COLD], rows=64, places=6),
    "cached beginnings": dict(batches=[WARM], rows=48, places=6),
    "short requests": dict(
        batches=[([1, 2, 3, 1], [0, 0, 0, 9]), ([2, 1], [2, 1])], rows=16, places=4
    ),
    "one batch after the other": dict(
        batches=[([17, 1, 3], [7, 3, 0]), ([32], [0]), ([20, 9], [0, 5]), ([1], [3])],
        rows=32,
        places=3,
    ),
    "chunks of 128": dict(
        batches=[([131, 3], [0, 2]), ([1, 128], [1, 0])], rows=136, places=3, chunk=128
    ),
    "the next norm sums over the ranks": dict(
        batches=[([3], [0])], rows=16, places=2, fuses_reduce=True
    ),
    "projected columns have factors": dict(
        batches=[([18, 3], [7, 0])], rows=32, places=2, factors=True
    ),
}


@pytest.fixture(scope="module")
def beside_the_reference():
    """The same where the release's mixer does not scan with the kernels of the queue."""
    cases = {name: case | dict(eagerly=False) for name, case in CASES.items()}
    return interpreted.run("host.references.compare_captured", cases)


@pytest.mark.revision(">=0.5.22")
@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_the_plain_mixer(case, beside_the_reference):
    """NaN stands behind every batch. The release's own mixer has the weights."""
    found = beside_the_reference[case]
    assert found["others"] == 0
    assert all(found[name] < 1e-3 for name in ("output", "conv", "ssm")), found


@pytest.mark.revision("<0.5.19")
@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_an_eager_prefill_bit_for_bit(case, compared):
    """NaN stands behind every batch. From the plain mixer they differ as float32 does."""
    found = compared[case]
    assert found["bits"] == 0
    assert found["others"] == 0
    assert all(found[name] < 1e-3 for name in ("output", "conv", "ssm")), found


@pytest.mark.revision("<0.5.19")
def test_only_its_own_kernels_are_launched(compared):
    names = [name for name in compared["cold"]["launched"] if "norm" not in name]
    assert names == ["_convolve_kernel", "_steps_kernel", "_states_kernel", "_scan_kernel"]


@pytest.mark.revision("<0.5.19")
def test_the_last_projection_sums_over_the_ranks_unless_the_next_norm_does(compared):
    told = {case: found["told"] for case, found in compared.items()}
    assert told.pop("the next norm sums over the ranks") == {"skip_all_reduce": True}
    assert not any(told.values())


def test_every_row_is_in_one_chunk():
    """300 random batches. A row's chunk is of its own request, or, behind the batch, of the rows to
    zero. Chunks and places left over have no rows."""
    for seed in range(300):
        source = random.Random(seed)
        chunk, places = source.choice([16, 64, 128]), source.randint(1, 12)
        count, longest = source.randint(1, places), (3 if seed % 50 else 40) * chunk
        lengths = [
            source.choice([1, source.randint(1, 40), source.randint(1, longest)])
            for _ in range(count)
        ]
        tokens = sum(lengths) + source.choice([0, 1, source.randint(0, 3 * chunk)])
        warm = [source.random() < 0.5 for _ in lengths]
        assert chunked(lengths, warm, tokens, places, chunk) is None, seed


def chunked(lengths, warm, tokens, places, chunk):
    """What is wrong with the columns of a batch, or None."""
    made, goes_on = tables.cut(lengths, warm, tokens, places, chunk)
    seen = [[] for _ in range(tokens)]
    for start, size, owner in zip(made.start, made.size, made.owner):
        if abs(size) > chunk:
            return "a chunk is too long"
        for row in range(start, start + abs(size)):
            seen[row].append(owner if size > 0 else -1)
    owners = [[i] for i, length in enumerate(lengths) for _ in range(length)]
    used = made.size != 0
    if (made.start[used] != abs(made.size[used]).cumsum() - abs(made.size[used])).any():
        return "chunks are not in the order of their rows"
    real = made.size > 0
    if ((made.start[real] - made.cu[made.owner[real]]) % chunk).any():
        return "a chunk begins within one of its request"
    if seen != owners + [[-1]] * (tokens - len(owners)):
        return "a row is in no chunk, in two, or in another request's"
    rows = list(lengths) + [0] * (places - len(lengths))
    if [made.size[a:b].sum() for a, b in zip(made.first, made.first[1:])] != rows:
        return "a request's chunks are not all between its first and the next one's"
    if (made.cu[1:] - made.cu[:-1]).tolist() != rows:
        return "a request's first row is another"
    if goes_on.tolist() != [int(one) for one in warm] + [0] * (places - len(lengths)):
        return "another request goes on"
    return None


def test_a_batch_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="3 requests of 12 rows, for 2 of 32"):
        tables.cut([5, 4, 3], [False] * 3, 32, 2, 16)
    with pytest.raises(ValueError, match="1 requests of 33 rows, for 2 of 32"):
        tables.cut([33], [False], 32, 2, 16)


def test_the_next_batch_leaves_alone_what_is_still_being_copied():
    """With the overlap schedule, two forwards are under way: the host prepares one while the
    other's copy may wait."""
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


def test_tables_begin_at_addresses_that_16_bytes_divide():
    """For another address Triton compiles a kernel again, which a capture must not meet."""
    for requests in (1, 3, 5):
        made = tables.Tables(40, requests, 16, torch.device("cpu"))
        plan = made.plan
        views = [plan.cu, plan.first, plan.start, plan.size, made.owner, made.warm]
        assert [view.storage_offset() % 4 for view in views] == [0] * len(views)
        ends = [view.storage_offset() + len(view) for view in views]
        assert all(view.storage_offset() >= end for view, end in zip(views[1:], ends))


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
