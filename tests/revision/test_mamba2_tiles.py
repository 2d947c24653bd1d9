"""The releases' kernels of a Mamba2 prefill: launched with tiles out of the overlay's table, right
with them, and fit for the GPU."""

import contextlib
import importlib
import sys

import pytest

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.24")

CHUNKED = dict(lengths=[37, 5, 1, 40], prefixes=[0, 0, 0, 0])
CACHED = dict(lengths=[3, 40, 1, 20], prefixes=[4, 0, 9, 7])
TILES = {
    "SAFE": None,
    "80, 128": (80, 128),
    "64, 128": (64, 128),
    "128, 256": (128, 256),
}
CASES = {
    f"{batch}, tiles of {name}": dict(shape, sizes=sizes)
    for batch, shape in {"cold": CHUNKED, "cached beginnings": CACHED}.items()
    for name, sizes in TILES.items()
} | {
    "a chunk of each request": dict(lengths=[32, 32], prefixes=[0, 5], sizes=(80, 128)),
    "one token": dict(lengths=[1], prefixes=[6], sizes=(80, 128)),
    "more requests than chunks": dict(lengths=[2] * 10, prefixes=[0, 3] * 5, sizes=(64, 128)),
    "heads wider than a tile": dict(
        lengths=[37, 20], prefixes=[0, 3], sizes=None, size=80, d_state=64
    ),
    "a state of 256": dict(
        lengths=[20, 17], prefixes=[0, 3], sizes=(64, 256), size=16, d_state=256
    ),
    "float16": dict(
        lengths=[37, 20], prefixes=[0, 3], sizes=(80, 128), size=80, d_state=128, dtype="float16"
    ),
}


@pytest.fixture(scope="module")
def compared():
    from host import interpreted

    return interpreted.run("host.references.compare_ssd", CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_scan_equals_the_recurrence_whatever_the_tile(case, compared):
    """Largest differences from float64; outputs and states are of order 10."""
    found = compared[case]
    allowed = 0.3 if "dtype" in CASES[case] else 1e-3
    assert found["output"] < allowed and found["state"] < allowed, found


@pytest.mark.parametrize("case", CASES)
def test_every_launch_has_its_blocks_from_the_table(case, compared):
    """A kernel whose blocks have defaults, and that is launched with these or by an Autotuner, is
    one that nobody measured."""
    found = compared[case]
    assert not found["timed"] and not found["defaulted"], found
    assert found["tables"] == found["given"]


def test_the_table_names_every_kernel_whose_blocks_have_defaults():
    """All that a prefill's scan may launch, also those that none of the cases above reaches."""
    from sglang.srt.prefill_graph.kernels import tiles

    assert set(named_kernels()) == tiles.KERNELS.keys()


@pytest.mark.parametrize("sizes", [None, (80, 128), (16, 16)])
@pytest.mark.parametrize("known", [True, False])
def test_what_was_not_measured_gets_safe_tiles(sizes, known, monkeypatch):
    import torch
    from sglang.srt.prefill_graph.kernels import tiles

    cpu = torch.device("cpu")
    assert tiles.capability(cpu) is None
    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER if known else (8, 0))
    find = tiles.of_release.__wrapped__
    for kernel in ("chunk_state", "chunk_scan", "state_varlen"):
        size, d_state = sizes or (80, 64)
        expected = tiles.RELEASE.get((kernel, size, d_state), tiles.SAFE) if known else tiles.SAFE
        assert find(kernel, size, d_state, 2, cpu) == expected
        assert find(kernel, size, d_state, 4, cpu) == tiles.SAFE
    assert (find("chunk_scan", 80, 128, 2, cpu) == tiles.SAFE) == (not known)


# --- compiled for GPUs


def combined():
    """The module of mamba_chunk_scan_combined."""
    for name in (
        "sglang.kernels.ops.mamba.triton_ops.ssd_combined",
        "sglang.srt.layers.attention.mamba.ops.ssd_combined",
    ):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise AssertionError("the release has no mamba_chunk_scan_combined")


def namespaces(module):
    """The global variables of every function of the package that the module's functions can
    call."""
    package, found, waiting = module.__package__, {}, [module]
    while waiting:
        one = waiting.pop()
        if one.__name__ in found:
            continue
        found[one.__name__] = vars(one)
        named = {
            getattr(value, "__module__", None) for value in vars(one).values() if callable(value)
        }
        waiting += [
            sys.modules[name] for name in named if name and name.startswith(f"{package}.ssd")
        ]
    return found.values()


def plain(kernel):
    """The triton.jit function in whatever a release and the overlay put around it; None where it is
    none."""
    from host import launches
    from sglang.srt.prefill_graph.kernels import tiles
    from triton import JITFunction
    from triton.runtime.autotuner import Autotuner, Heuristics

    if isinstance(kernel, tiles.Fixed):
        kernel = kernel.kernel
    while isinstance(kernel, (Autotuner, Heuristics)):
        kernel = kernel.fn
    if isinstance(kernel, launches.Recorder):
        kernel = kernel.kernel
    return kernel if isinstance(kernel, JITFunction) else None


def named_kernels():
    """The kernels whose blocks have defaults, by name."""
    found = {}
    for room in namespaces(combined()):
        for kernel in filter(None, map(plain, room.values())):
            defaults = [
                name
                for name, one in kernel.signature.parameters.items()
                if name.startswith("BLOCK") and one.default is not one.empty
            ]
            if defaults:
                found[kernel.fn.__name__] = kernel
    return found


def launched(monkeypatch, size, d_state, dtype, initial, heads=16, groups=2, chunk=128):
    """Launches of a scan by name, given its tensors as MambaMixer2 gives them: columns of wider
    ones, a pool in float32."""
    import torch
    from host import launches
    from sglang.srt.prefill_graph.kernels import tiles

    noted = []
    for room in namespaces(combined()):
        for name, kernel in list(room.items()):
            if isinstance(kernel, launches.Recorder):
                monkeypatch.setattr(kernel, "launches", noted)
            elif isinstance(kernel, tiles.Fixed):
                monkeypatch.setattr(
                    kernel, "kernel", launches.Recorder(plain(kernel.kernel), noted)
                )
            elif name.endswith("_kernel") and plain(kernel):  # others are called by kernels
                monkeypatch.setitem(room, name, launches.Recorder(plain(kernel), noted))
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(torch.cpu, "device", lambda *_: contextlib.nullcontext(), raising=False)
    tokens, inner, wide = 5, heads * size, groups * d_state
    x, b, c = torch.empty(1, tokens, inner + 2 * wide, dtype=dtype).split([inner, wide, wide], -1)
    dt = torch.empty(1, tokens, 2 * inner + 2 * wide + heads, dtype=dtype)[..., -heads:]
    chunks = torch.zeros(3, dtype=torch.int32)
    combined().mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, size)),
        dt,
        torch.empty(heads),
        b.unflatten(-1, (groups, d_state)),
        c.unflatten(-1, (groups, d_state)),
        chunk_size=chunk,
        D=torch.empty(heads),
        dt_bias=torch.empty(heads),
        dt_softplus=True,
        cu_seqlens=torch.zeros(3, dtype=torch.int32),
        seq_idx=torch.zeros(1, tokens, dtype=torch.int32),
        chunk_indices=chunks if initial else None,
        chunk_offsets=chunks if initial else None,
        initial_states=torch.empty(2, heads, size, d_state) if initial else None,
        out=torch.empty(1, tokens, heads, size, dtype=dtype),
        return_varlen_states=True,
        state_dtype=torch.float32,
    )
    return {launch.name: launch for launch in noted}


# of a head and of a state, as people serve them
SIZES = [(80, 128), (64, 128), (64, 256), (128, 256)]
NEXT_TO_NOTHING = 8  # bytes: Triton 3.6 spills so much of one scan on sm_100
# KiB of one block; 99 on sm_86 and sm_89, which run what is compiled for sm_80
SHARED = {80: 99, 90: 227, 100: 227, 120: 99}


@pytest.mark.parametrize("initial", [False, True], ids=["cold", "cached beginnings"])
@pytest.mark.parametrize("size, d_state", SIZES)
def test_measured_tiles_keep_to_registers_and_fit(size, d_state, initial, monkeypatch):
    import torch
    import triton
    from sglang.srt.prefill_graph.kernels import tiles

    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER)
    monkeypatch.setattr(tiles, "of_release", tiles.of_release.__wrapped__)
    found = launched(monkeypatch, size, d_state, torch.bfloat16, initial)
    assert found.keys() == tiles.KERNELS.keys()
    # Of a thread's registers so many bytes may wait in memory: tiles that spill nothing were
    # slower. Triton 3.6 spills 16 of the first, Triton 3.8 72.
    allowed = 72 if (size, d_state) == (80, 128) and initial else 0
    if triton.__version__.startswith("3.4.") and (size, d_state) == (64, 256):
        allowed = 48  # later versions of Triton: none
    for name in (
        "_bmm_chunk_fwd_kernel",
        "_chunk_scan_fwd_kernel",
        "_chunk_state_fwd_kernel",
        "_chunk_state_varlen_kernel",
    ):
        short, *_ = tiles.KERNELS[name]
        tile = tiles.RELEASE[short, 0 if short == "bmm" else size, d_state]
        words = found[name].given | found[name].options
        assert {word: words.get(word) for word in tile} == tile
        made = found[name].compiled(90)
        assert made.spilled <= allowed and made.shared <= SHARED[90] << 10, (
            name,
            made.spilled,
            made.shared,
        )


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
@pytest.mark.parametrize("capability", SHARED)
def test_safe_tiles_keep_to_registers_and_fit_every_gpu(capability, kind, monkeypatch):
    """The size of a head changes nothing in the code, and that of a state only in the scan; a
    chunk's only in the running sum."""
    import torch

    dtype = getattr(torch, kind)
    large = launched(monkeypatch, 80, 256, dtype, True, chunk=256)
    cold, warm = (launched(monkeypatch, 80, 128, dtype, initial) for initial in (False, True))
    changed = [launch for launch in warm.values() if launch.given.get("HAS_INITSTATES")]
    for launch in [
        *cold.values(),
        *changed,
        large["_chunk_scan_fwd_kernel"],
        large["_chunk_cumsum_fwd_kernel"],
    ]:
        made = launch.compiled(capability)
        assert made.spilled <= NEXT_TO_NOTHING and made.shared <= SHARED[capability] << 10, (
            launch.name,
            made.spilled,
            made.shared,
        )
