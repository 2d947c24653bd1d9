"""Mamba2's scan at sizes and on GPUs where no tile was measured."""

from types import SimpleNamespace

import pytest
import torch
from host import late
from test_mamba2_scan import launched

with late.modules():
    from sglang.srt.prefill_graph.captured import mamba2
    from sglang.srt.prefill_graph.kernels import mamba2_scan, tiles

pytestmark = [
    pytest.mark.revision(">=0.5.9,<0.5.24"),
    pytest.mark.patch(
        "mamba2/scan-in-place",
        "breakable/capture-layer-stack",
        "breakable/capture-recurrent-layers",
        "breakable/capture-mamba2-through-hook",
    ),
]

SHARED = {  # bytes that one program may take on a GPU, by compute capability
    (8, 0): 163 << 10,
    (8, 6): 99 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (12, 0): 99 << 10,
}
SIZES, MEASURED = [(64, 64), (80, 256)], [(64, 128), (128, 256)]  # head, state
# Triton compiles the others as it does the one of their kind that has the least shared memory
KINDS = [(8, 6), (9, 0), (10, 0)]
CPU = torch.device("cpu")


@pytest.fixture
def on(monkeypatch):
    """on(capability, switch): this host has such a GPU, and a server there such a switch."""

    def choose(capability, switch=""):
        monkeypatch.setattr(tiles, "capability", lambda device: capability)
        monkeypatch.setenv(tiles.SWITCH, switch)

    for module, name in ((tiles, "own"), (mamba2_scan, "known_shape")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    return choose


def own(size, d_state, itemsize=2):
    return [tiles.own(name, 64, size, d_state, itemsize, CPU) for name in ("states", "scan")]


def test_every_gpu_that_the_tiles_were_compiled_for_has_a_limit():
    assert SHARED.keys() == tiles.COMPILED


COMPILED = [(capability, *sizes) for sizes in [*SIZES, MEASURED[0]] for capability in KINDS]
COMPILED += [(capability, *MEASURED[1]) for capability in SHARED]


@pytest.mark.parametrize("capability, size, d_state", COMPILED)
def test_no_register_spills_and_every_program_fits(capability, size, d_state, on, monkeypatch):
    if capability == tiles.HOPPER and (size, d_state) in MEASURED:
        pytest.skip("measured there: test_mamba2_scan.py")
    on(capability, "capture")
    for name, launch in launched(
        monkeypatch, size, d_state, track=True, capability=capability
    ).items():
        made = launch.compiled(capability[0] * 10 + capability[1])
        most = 8 if (capability, size, d_state) == ((10, 0), 64, 64) else 0  # with Triton 3.6
        assert made.spilled <= most and made.shared <= SHARED[capability], (name, made)
        assert capability != tiles.HOPPER or not made.miscompiled, made.miscompiled


def test_hopper_has_tiles_of_every_size_where_the_switch_asks(on):
    on(tiles.HOPPER)
    assert all(own(*sizes) == [None, None] for sizes in SIZES)
    on(tiles.HOPPER, "capture")
    safe = [tiles.SAFE_OWN["states"], tiles.SAFE_OWN["scan"]]
    assert all(own(*sizes) == safe for sizes in SIZES)
    assert own(16, 32) == [safe[0] | dict(BLOCK_N=32), safe[1]]
    assert own(64, 128) == [tiles.OWN["states", 64, 128], tiles.OWN["scan", 64, 128]]
    assert own(64, 128, itemsize=4) == own(144, 64) == own(64, 512) == [None, None]


@pytest.mark.parametrize("switch", ["", "break", "capture", "all"])
@pytest.mark.parametrize("capability", [*SHARED, (7, 5), None])
def test_another_gpu_takes_them_where_the_switch_asks(capability, switch, on):
    on(capability, switch)
    asked = capability in tiles.COMPILED and switch in tiles.ASKED
    assert all(bool(tile) == asked for tile in own(64, 64))
    assert all(bool(tile) == (asked or capability == tiles.HOPPER) for tile in own(64, 128))


@pytest.mark.parametrize("sizes", [(64, 128), (64, 64)])
def test_chunks_are_those_of_the_tiles(sizes, on):
    for capability in SHARED:
        on(capability, "capture")
        rows = mamba2_scan.known_shape(64, 8, *sizes, CPU).chunk
        measured = capability == tiles.HOPPER and sizes == (64, 128)
        assert rows == (tiles.CHUNK if measured else tiles.SAFE_CHUNK)


@pytest.mark.patch(
    "breakable/capture-layer-stack",
    "breakable/capture-recurrent-layers",
    "breakable/capture-mamba2-through-hook",
)
def test_a_mixer_breaks_on_a_gpu_without_measurements_and_names_the_switch(on, monkeypatch):
    monkeypatch.delenv("SGLANG_MAMBA2_SCAN", raising=False)
    weight = SimpleNamespace(weight=torch.zeros(96, 1, 4))
    mixer = SimpleNamespace(activation="silu", conv1d=weight, n_groups=2, tp_size=1)
    cache = SimpleNamespace(temporal=torch.zeros(3, 4, 64, 64))
    on((8, 0), "")
    assert mamba2.why_not(mixer, cache, torch.bfloat16) == (
        "its scan is not measured on this GPU; SGLANG_PREFILL_GRAPH_STATES=capture captures it"
    )
    on((8, 0), "capture")
    assert mamba2.why_not(mixer, cache, torch.bfloat16) is None
    assert mamba2.chunk(cache) == 64
