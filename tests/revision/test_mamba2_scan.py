"""The scan of a Mamba2 prefill in three kernels, from the state pool and to it."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late, launches
from hypothesis import given, settings
from hypothesis import strategies as some
from test_tracked_states import assert_left

with late.modules():
    from sglang.srt.prefill_graph.kernels import mamba2_scan, ssd, tiles

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.20")

OURS = ["_steps_kernel", "_states_kernel", "_scan_kernel"]
SAFE = dict(  # tiles.SAFE_OWN
    lengths=[70, 64],
    prefixes=[2, 0],
    tracked=[64, 64],
    chunk=64,
    states=dict(BLOCK_P=32, BLOCK_N=64),
    scan=dict(BLOCK_HEADS=1),
)
TWO, WIDE = dict(lengths=[20, 18], prefixes=[0, 2]), dict(size=80, d_state=64, tail=3)
KERNELS = {
    "cold": dict(lengths=[33, 5, 1, 16], prefixes=[0] * 4, alone=[0, 1, 3]),
    "cached beginnings": dict(
        lengths=[33, 5, 1, 16, 18], prefixes=[3, 0, 9, 0, 1], alone=[0, 2, 4]
    ),
    "more requests than chunks": dict(lengths=[2, 1, 3] * 2, prefixes=[0, 5, 0] * 2, alone=[1, 5]),
    "NaN behind the batch": dict(lengths=[20, 3], prefixes=[0, 2], tail=21, alone=[1]),
    "heads of 80": TWO | WIDE | dict(states=dict(BLOCK_P=64, BLOCK_N=32)),
    "heads of 80 in one block": TWO | WIDE | dict(states=dict(BLOCK_P=128, BLOCK_N=64)),
    "a group": TWO | dict(heads=9, groups=1, size=16, scan=dict(BLOCK_HEADS=3)),
    "a group for each head": TWO | dict(heads=3, groups=3, size=16, scan=dict(BLOCK_HEADS=1)),
    "a head at a time": dict(
        lengths=[70, 33], prefixes=[0, 2], chunk=64, scan=dict(BLOCK_HEADS=1), alone=[1]
    ),
    "chunks of 128": dict(lengths=[130, 3], prefixes=[0, 1], chunk=128, size=16, alone=[0, 1]),
    "safe tiles, a head in halves": SAFE | dict(size=128, d_state=256, heads=2, groups=1),
    "safe tiles, a head smaller than a block": SAFE | dict(size=16, d_state=64),
    "safe tiles, heads of 80": SAFE | dict(size=80, d_state=128, heads=2, alone=[1], tail=3),
    "tracked": dict(
        lengths=[34, 5, 16, 33], prefixes=[0, 0, 4, 3], tracked=[32, 0, 16, 16], alone=[1, 3]
    ),
    "tracked to the last row": dict(lengths=[18, 9], prefixes=[0, 3], tracked=[18, 9], alone=[1]),
    "float16": dict(lengths=[18, 17], prefixes=[0, 3], dtype="float16", size=80, alone=[1]),
    "states in float16": dict(
        lengths=[18, 17], prefixes=[0, 3], pool="float16", alone=[1], tracked=[16, 0]
    ),
}
MIXER = {
    "cold": dict(lengths=[3, 33], prefixes=[0, 0]),
    "cached beginnings": dict(lengths=[20, 1, 16], prefixes=[7, 3, 0]),
    "one token": dict(lengths=[1], prefixes=[5]),
    "chunks of 128": dict(lengths=[130, 3], prefixes=[2, 0], chunk=128),
}
RELEASE = {"the release's own": dict(lengths=[20, 3], prefixes=[0, 2], release=True)}
TRACKED = {
    "behind a request that ends between chunks": dict(lengths=[5, 40, 37], prefixes=[0, 0, 0]),
    "behind cached beginnings": dict(lengths=[21, 40, 18], prefixes=[16, 0, 32]),
    "larger pages than chunks": dict(lengths=[7, 70], prefixes=[0, 0], step=32),
    "another prompt branches off before the end": dict(
        lengths=[9, 40], prefixes=[0, 0], branching={"1": 16}
    ),
}
SMALLER = {"pages that are no whole chunks": dict(lengths=[21, 40], prefixes=[0, 16], chunk=32)}
tracking = pytest.mark.revision(">=0.5.13")


@pytest.fixture(scope="module")
def compared(revision):
    """What each case came to, by the way it is run and its name."""
    ways = dict(kernels=KERNELS, mixer=MIXER | RELEASE)
    if revision.micro >= 13:
        ways["tracked"] = TRACKED | SMALLER
    found = interpreted.run(
        "host.references.compare_scan",
        {
            f"{how}: {name}": dict(case, how=how)
            for how, cases in ways.items()
            for name, case in cases.items()
        },
    )
    return {how: {name: found[f"{how}: {name}"] for name in cases} for how, cases in ways.items()}


@pytest.mark.parametrize("case", KERNELS)
def test_the_kernels_equal_the_recurrence(case, compared):
    """Largest differences from float64; outputs and states are of order 10. A request has the same
    bits alone and among others."""
    found = compared["kernels"][case]
    allowed = dict(output=1e-3, state=1e-3, tracked=1e-3)
    if "float16" in (KERNELS[case].get("dtype"), KERNELS[case].get("pool")):
        allowed = dict(output=0.1, state=0.03, tracked=0.03)
    assert all(found[name] < most for name, most in allowed.items()), found  # false for NaN
    assert found["others"] == found["alone"] == 0


@pytest.mark.parametrize("case", MIXER)
def test_the_release_s_mixer_scans_in_place(case, compared):
    """Largest differences in float32; outputs are of order 1, states of order 10."""
    found = compared["mixer"][case]
    assert found["launched"] == OURS
    assert found["output"] < 1e-4 and found["conv"] < 1e-5 and found["ssm"] < 1e-3, found
    assert found["others"] == 0


def test_the_switch_brings_the_release_s_scan_back(compared):
    [found] = (compared["mixer"][name] for name in RELEASE)
    assert not set(found["launched"]) & set(OURS) and "_chunk_scan_fwd_kernel" in found["launched"]
    assert found["output"] < 1e-4 and found["conv"] < 1e-5 and found["ssm"] < 1e-3, found


@tracking
@pytest.mark.parametrize("case", TRACKED | SMALLER)
def test_the_prefix_cache_gets_its_states(case, compared):
    """From our scan where they end chunks of it, else from the release's."""
    found = compared["tracked"][case]
    if case in SMALLER:
        assert not set(found["launched"]) & set(OURS)
        assert "_chunk_scan_fwd_kernel" in found["launched"]
    else:
        assert found["launched"] == OURS
    assert found["waits"] == []
    assert_left(found, (TRACKED | SMALLER)[case])
    output, conv, ssm = found["own"]
    assert output < 1e-4 and conv < 1e-5 and ssm < 1e-3, found


# --- when the release's scan is taken


def prefill(monkeypatch):
    """choose()'s keyword arguments for a batch of two prefills that our kernels take."""
    monkeypatch.setattr(
        tiles,
        "own",
        lambda kernel, *_: dict(states=dict(BLOCK_P=16), scan=dict(BLOCK_HEADS=2))[kernel],
    )
    monkeypatch.setattr(tiles, "chunk", lambda *_: tiles.CHUNK)
    monkeypatch.setattr(mamba2_scan.ops, "mamba2_scan", lambda: "the release's")
    monkeypatch.delenv("SGLANG_MAMBA2_SCAN", raising=False)
    mixed = SimpleNamespace(
        extend_seq_lens_cpu=[3, 2],
        has_initial_states=torch.zeros(2, dtype=torch.bool),
        prep_initial_states=True,
    )
    metadata = SimpleNamespace(mixed_metadata=mixed, num_prefills=2, num_prefill_tokens=5)
    x, b = torch.zeros(5, 64), torch.zeros(5, 32)
    return dict(
        metadata=metadata, pool=torch.zeros(4, 4, 16, 16), slots=torch.tensor([1, 2]), x=x, b=b
    )


def taken(given):
    """Whether ours is. Else initial states are gathered and states written as the release says."""
    scan, gather, slots = mamba2_scan.choose(**given)
    ours = scan != "the release's"
    assert (gather, slots) == ((False, slice(0)) if ours else (True, given["slots"]))
    return ours


def test_ours_is_taken_where_it_can_be(monkeypatch):
    given = prefill(monkeypatch)
    assert taken(given)
    plan = given["metadata"].scan_plan
    assert taken(given) and given["metadata"].scan_plan is plan, "one plan for all layers"
    monkeypatch.setenv("SGLANG_MAMBA2_SCAN", "in-place")
    assert taken(given)


def wanted(step, rows=(128, 0)):
    return SimpleNamespace(step=step, rows=list(rows), slots=[3, 0])


def turned(tensor):
    """The same, its last two dimensions the other way round in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def lengths(values):
    return lambda given: setattr(given["metadata"].mixed_metadata, "extend_seq_lens_cpu", values)


def kept(**more):
    return lambda given: vars(given["metadata"]).update(track_ssm_h_src=given["slots"], **more)


ELSEWHERE = {  # changes of what choose() is given
    "x in columns": lambda given: given.update(x=turned(given["x"])),
    "b in columns": lambda given: given.update(b=turned(given["b"])),
    "states in columns": lambda given: given.update(pool=turned(given["pool"])),
    "heads of 20": lambda given: given.update(
        pool=given["pool"].new_zeros(4, 4, 20, 16), x=given["x"].new_zeros(5, 80)
    ),
    "three groups of four heads": lambda given: given.update(b=given["b"].new_zeros(5, 48)),
    "fewer lengths than prefills": lengths([5]),
    "fewer tokens than prefilled": lengths([3, 1]),
    "no lengths": lengths(None),
    "nobody says which states are kept": kept(),
    "states that end no chunk": kept(wanted_states=wanted(64)),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_the_release_s_scan_is_taken_elsewhere(case, monkeypatch):
    given = prefill(monkeypatch)
    ELSEWHERE[case](given)
    assert not taken(given)


@pytest.mark.parametrize("asked", [False, True], ids=["without tiles for a kernel", "where asked"])
def test_the_release_s_scan_is_taken(asked, monkeypatch):
    given = prefill(monkeypatch)
    if asked:
        monkeypatch.setenv("SGLANG_MAMBA2_SCAN", "release")
    else:
        no_tile = lambda kernel, *_: {} if kernel == "scan" else dict(BLOCK_P=16)  # noqa: E731
        monkeypatch.setattr(tiles, "own", no_tile)
    assert not taken(given)


# --- the plan


@settings(deadline=None, max_examples=200)
@given(
    some.lists(some.integers(1, 700), min_size=1, max_size=40),
    some.sampled_from([16, 64, 128]),
    some.booleans(),
)
def test_every_row_is_of_one_chunk_and_every_chunk_of_one_request(lengths, chunk, tracked):
    kept = [length // chunk * chunk for length in lengths], list(range(len(lengths)))
    plan = ssd.plan(lengths, chunk, torch.device("cpu"), kept if tracked else None)
    begins = [0, *itertools.accumulate(lengths)]
    chunks = [
        (begin + row, min(chunk, length - row))
        for begin, length in zip(begins, lengths)
        for row in range(0, length, chunk)
    ]
    assert plan.cu.tolist() == begins and plan.requests == len(lengths)
    assert list(zip(plan.start.tolist(), plan.size.tolist(), strict=True)) == chunks
    assert plan.chunks == len(chunks) == plan.first[-1]
    assert plan.start[plan.first[:-1].long()].tolist() == begins[:-1]
    tables = plan.cu, plan.first, plan.start, plan.size
    if tracked:
        assert (plan.track_rows.tolist(), plan.track_slots.tolist()) == kept
        tables += plan.track_rows, plan.track_slots
    else:
        assert plan.track_rows is None and plan.track_slots is None
    for table in tables:
        assert table.dtype == torch.int32 and table.is_contiguous()
        assert table.storage_offset() * 4 % 16 == 0


# --- compiled for the GPU that the tiles were measured on

# heads and groups on one rank
SERVED = {(80, 128): (128, 8), (64, 128): (64, 8), (64, 256): (48, 1), (128, 256): (32, 2)}


def launched(
    monkeypatch,
    size,
    d_state,
    ranks=1,
    dtype="bfloat16",
    pool="float32",
    track=False,
    capability=(9, 0),
):
    """Launches by kernel of one rank's layer, with tiles out of the table."""
    noted = []
    for name in OURS:
        monkeypatch.setattr(ssd, name, launches.Recorder(getattr(ssd, name), noted))
    monkeypatch.setattr(tiles, "capability", lambda device: capability)
    served = SERVED.get((size, d_state), (128, 8))
    heads, groups = (max(1, count // ranks) for count in served)
    dtype, cpu = getattr(torch, dtype), torch.device("cpu")
    inner, wide = heads * size, groups * d_state
    x, b, c = torch.empty(3, inner + 2 * wide, dtype=dtype).split([inner, wide, wide], -1)
    dt = torch.empty(3, 2 * inner + 2 * wide + heads, dtype=dtype)[:, -heads:]
    own = getattr(tiles.own, "__wrapped__", tiles.own)
    chunk = tiles.chunk(size, d_state, cpu)
    made = ssd.Launches(
        ssd.Shape.of(heads, groups, size, d_state, chunk),
        ssd.plan([2, 1], chunk, cpu, ([0, 1], [0, 3]) if track else None),
        x.unflatten(-1, (heads, size)),
        b.unflatten(-1, (groups, d_state)),
        c.unflatten(-1, (groups, d_state)),
        dt,
        torch.empty(heads),
        torch.empty(heads),
        torch.empty(heads),
        torch.empty(3, heads, size, dtype=dtype),
        torch.empty(4, heads, size, d_state, dtype=getattr(torch, pool)),
        torch.empty(2, dtype=torch.int32),
        torch.empty(2, dtype=torch.bool),
    )
    made.steps()
    made.states(own("states", heads, size, d_state, dtype.itemsize, cpu))
    made.scan(own("scan", heads, size, d_state, dtype.itemsize, cpu))
    return {launch.name: launch for launch in noted}


def spilled(name, size):
    """Bytes of a thread's registers that may wait in memory: as many as Triton 3.4 to 3.7 spill."""
    import triton

    old = triton.__version__.startswith("3.4.") and size == 80
    most = {"_scan_kernel": 96 if old else 8, "_states_kernel": 8 if old else 0}
    return most.get(name, 0)


OF_A_RANK = [
    *((*sizes, 1, "bfloat16", "float32") for sizes in SERVED),
    (80, 128, 8, "bfloat16", "float32"),  # has the tiles of few heads
    (80, 128, 1, "float16", "float32"),
    (80, 128, 1, "bfloat16", "bfloat16"),
]


@pytest.mark.parametrize("size, d_state, ranks, dtype, pool", OF_A_RANK)
def test_the_kernels_keep_to_registers_and_fit(size, d_state, ranks, dtype, pool, monkeypatch):
    for name, launch in launched(monkeypatch, size, d_state, ranks, dtype, pool).items():
        made = launch.compiled(90)
        assert made.spilled <= spilled(name, size) and made.shared <= 227 << 10, (name, made)
        assert not made.miscompiled, made.miscompiled


@tracking
@pytest.mark.parametrize(
    "dtype, pool", [("bfloat16", "float32"), ("float16", "float32"), ("bfloat16", "bfloat16")]
)
@pytest.mark.parametrize("size, d_state", SERVED)
def test_tracking_spills_next_to_nothing(size, d_state, dtype, pool, monkeypatch):
    """Two loops, one behind the other: at 128 x 64 values of a state a few registers wait in memory
    between them."""
    launch = launched(monkeypatch, size, d_state, 1, dtype, pool, True)["_states_kernel"]
    made = launch.compiled(90)
    most = {(128, "float32"): 192, (128, "bfloat16"): 8}.get((launch.given["BLOCK_P"], pool), 0)
    assert made.spilled <= most and made.shared <= 227 << 10, made
    assert not made.miscompiled, made.miscompiled
