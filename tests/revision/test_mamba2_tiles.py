"""The releases' kernels of a Mamba2 prefill: launched with tiles out of the overlay's table, right
with them, and fit for the GPU."""

import contextlib
import sys

import pytest
import torch
from host import late, launches

with late.modules():
    from sglang.srt.prefill_graph.kernels import tiles

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.24")

CACHED = dict(lengths=[3, 40, 1, 20], prefixes=[4, 0, 9, 7])
TILES = [None, (80, 128), (64, 128), (128, 256)]  # None: SAFE
REFERENCE = "compare_ssd"
CASES = {f"tiles of {sizes or 'SAFE'}": dict(CACHED, sizes=sizes) for sizes in TILES} | {
    "cold": dict(lengths=[37, 5, 1, 40], prefixes=[0, 0, 0, 0]),
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


@pytest.mark.parametrize("case", CASES)
def test_the_scan_equals_the_recurrence_whatever_the_tile(case, compared):
    """Largest differences from float64; outputs and states are of order 10."""
    found = compared[case]
    allowed = 0.3 if "dtype" in CASES[case] else 1e-3
    assert found["output"] < allowed and found["state"] < allowed, found


def test_the_table_names_every_kernel_whose_blocks_have_defaults():
    """All that a prefill's scan may launch, also those that none of the cases above reaches."""
    assert set(named_kernels()) == tiles.KERNELS.keys()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_release_chooses_where_nothing_was_measured(capability, monkeypatch):
    """With its autotuner, from 0.5.22 on; earlier ones launch the defaults of the signatures."""
    monkeypatch.setattr(tiles, "capability", lambda device: capability)
    monkeypatch.setattr(tiles, "of_release", tiles.of_release.__wrapped__)
    tuned = {one.kernel.fn.__name__ for one in fixed() if one.tuned}
    assert tuned in (set(), tiles.KERNELS.keys())
    found = launched(monkeypatch, 128, 128, torch.bfloat16, True)
    for name, (short, *_) in tiles.KERNELS.items():
        size = 0 if short == "bmm" else 128
        measured = tiles.of_release(short, size, 128, 2, torch.device("cpu"))
        tile = measured or tiles.PLAIN.get(short, tiles.SAFE)
        words = found[name].given | found[name].options
        given = {word: words[word] for word in tile if word in words}
        assert given == (tile if measured or name not in tuned else {}), name


# --- compiled for GPUs


def combined():
    """The module of mamba_chunk_scan_combined."""
    return late.first(
        "sglang.kernels.ops.mamba.triton_ops.ssd_combined",
        "sglang.srt.layers.attention.mamba.ops.ssd_combined",
    )


def namespaces(module):
    """The global variables of all functions of the package that the module's can call."""
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
    """The triton.jit function below what a release and the overlay put around it, or None."""
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


def fixed():
    """The kernels of the release that take their tiles from the table."""
    kernels = [kernel for room in namespaces(combined()) for kernel in room.values()]
    return [kernel for kernel in kernels if isinstance(kernel, tiles.Fixed)]


def launched(monkeypatch, size, d_state, dtype, initial, heads=16, groups=2, chunk=128):
    """Launches of a scan by name, given its tensors as MambaMixer2 gives them: columns of wider
    ones, a pool in float32."""
    noted = []
    for room in namespaces(combined()):
        for name, kernel in list(room.items()):
            if isinstance(kernel, launches.Recorder):
                monkeypatch.setattr(kernel, "launches", noted)
            elif isinstance(kernel, tiles.Fixed):
                recorder = launches.Recorder(plain(kernel), noted)
                monkeypatch.setattr(kernel, "kernel", recorder)
                if kernel.tuned:
                    monkeypatch.setattr(kernel, "tuned", recorder)
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
# KiB of one block; 99 on sm_86, sm_89 and sm_120, which Triton compiles for as for sm_80
SHARED = {80: 99, 90: 227, 100: 227}


# behind cached beginnings a kernel has all the code of a cold one, and more
@pytest.mark.parametrize(
    "size, d_state, initial", [(80, 128, False), *((*sizes, True) for sizes in SIZES)]
)
def test_measured_tiles_keep_to_registers_and_fit(size, d_state, initial, monkeypatch):
    import triton

    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER)
    monkeypatch.setattr(tiles, "of_release", tiles.of_release.__wrapped__)
    found = launched(monkeypatch, size, d_state, torch.bfloat16, initial)
    assert found.keys() == tiles.KERNELS.keys()
    allowed = 0  # bytes of a thread's registers that may wait in memory
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
        assert made.spilled <= allowed and made.shared <= SHARED[90] << 10, (name, made)
        assert not made.miscompiled, (name, tile, made.miscompiled)


@pytest.mark.revision(">=0.5.22")
@pytest.mark.parametrize("size, d_state", SIZES)
def test_the_overlay_s_kernels_are_compiled_right(size, d_state, monkeypatch):
    """The prefill graph's, which test_mamba2_scan.py compiles for older releases."""
    import test_mamba2_scan

    for name, launch in test_mamba2_scan.launched(monkeypatch, size, d_state, track=True).items():
        made = launch.compiled(90)
        assert not made.miscompiled, (name, made.miscompiled)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_release_s_autotuner_times_no_miscompiled_tile(capability, monkeypatch):
    """What is left on Hopper, read in machine code where it has asynchronous products."""
    if not any(kernel.tuned for kernel in fixed()):
        pytest.skip("this release has none")
    monkeypatch.setattr(tiles, "capability", lambda device: capability)
    sizes = {"hdim": 128, "dstate": 128, "K": 128, "chunk_size": 256}
    data = dict.fromkeys(("a_ptr", "x_ptr"), torch.empty(0))
    for kernel in fixed():
        if kernel.name in tiles.PLAIN:
            continue
        left = kernel.tuned.early_config_prune(kernel.tuned.configs, sizes | data)
        left = [config.all_kwargs() for config in left]
        some = any(tiles.miscompiled(tile) for tile in left)
        assert some == (kernel.name != "chunk_scan" or capability != tiles.HOPPER)
        if capability == tiles.HOPPER:
            assert not miscompiled(kernel, left, monkeypatch)


def miscompiled(kernel, candidates, monkeypatch):
    """The tiles among the candidates at which Triton miscompiles the kernel of the release."""
    found = []
    for tile in candidates:
        if tile["num_warps"] % 4 or tile["BLOCK_SIZE_M"] % 64:
            continue  # no asynchronous products
        with monkeypatch.context() as patched:
            patched.setattr(tiles, "of_release", lambda *_: tile)
            launch = launched(patched, 128, 128, torch.bfloat16, True, chunk=256)
        if launch[kernel.kernel.fn.__name__].compiled(90).miscompiled:
            found.append(tile)
    return found


# float32 takes the most shared memory, and sm_80 has the least
@pytest.mark.parametrize(
    "capability, kind", [(80, "float32"), *((one, "bfloat16") for one in SHARED)]
)
def test_safe_tiles_keep_to_registers_and_fit_every_gpu(capability, kind, monkeypatch):
    """The size of a head changes nothing in the code, and that of a state only in the scan; a
    chunk's only in the running sum."""
    if any(kernel.tuned for kernel in fixed()):
        pytest.skip("this release's own autotuner chooses")
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
            made,
        )
