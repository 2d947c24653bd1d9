"""The settings of a gated delta rule's prefill kernels: one each, which the GPU can launch."""

import importlib
import inspect
import sys

import pytest
import torch
from host import late, launches

with late.modules():
    from sglang.srt.prefill_graph.kernels import tiles

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.24")

HOPPER = 227 << 10  # bytes of shared memory that one block may take there
FOLDERS = "sglang.kernels.ops.attention.fla", "sglang.srt.layers.attention.fla"


@pytest.fixture
def chunk():
    """The release's module, imported anew: as a server of any GPU would import it."""
    folder = late.first(*(f"{folder}.chunk" for folder in FOLDERS)).__package__
    forget = [name for name in sys.modules if name.startswith(f"{folder}.chunk")]
    before = {name: sys.modules.pop(name) for name in forget}
    yield lambda: importlib.import_module(f"{folder}.chunk")
    for name in [name for name in sys.modules if name.startswith(f"{folder}.chunk")]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER)


def tuned(launcher, name):
    """The Autotuner of a kernel of the function; None where its setting is in the launch."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    kernel = launcher.__globals__[name]
    while isinstance(kernel, Heuristics):
        kernel = kernel.fn
    return kernel if isinstance(kernel, Autotuner) else None


def solve(module):
    return tuned(
        module.chunk_gated_delta_rule_fwd_intra, "chunk_gated_delta_rule_fwd_kkt_solve_kernel"
    )


def states(module, needed=True):
    name = "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"
    found = tuned(module.chunk_gated_delta_rule_fwd_h, name)
    if found is None and needed:
        pytest.skip("this release writes the setting into the launch")
    return found


def said(kernel):
    return [config.all_kwargs() for config in kernel.configs]


def test_the_first_call_times_nothing_on_hopper(chunk, hopper):
    """Of several settings the first call, a warm-up of few tokens, chooses for all later sizes."""
    assert said(solve(chunk())) == [{"BK": 64, "num_warps": 1, "num_ctas": 1, "num_stages": 3}]


def test_what_was_measured_on_hopper_is_taken_there_alone(chunk, hopper):
    found = states(chunk())
    assert said(found) == [{"BV": 32, "num_warps": 4, "num_ctas": 1, "num_stages": 3}]


def test_another_gpu_keeps_the_release_s_settings(chunk):
    """Nothing was measured there."""
    assert len(said(solve(chunk()))) == 6
    found = states(chunk())
    assert [config["num_stages"] for config in said(found)] == [2]


def test_the_release_s_own_variables_come_first(chunk, hopper, monkeypatch):
    monkeypatch.setenv("SGLANG_GDN_CHUNK_H_NUM_STAGES", "1")
    module = chunk()
    found = states(module, needed=False)
    room = module.chunk_gated_delta_rule_fwd_h.__globals__
    if "GDN_CHUNK_H_NUM_STAGES" not in room:
        assert "SGLANG_GDN_CHUNK_H" not in inspect.getsource(sys.modules[room["__name__"]])
        pytest.skip("this release has none")
    assert [config["num_stages"] for config in said(found)] == [1]


# --- compiled for GPUs


class Bottom:
    """Stands below an Autotuner: notes the launch that it makes, and computes nothing."""

    def __init__(self, kernel):
        self.kernel, self.launches = kernel, []

    def __getattr__(self, name):
        return getattr(self.kernel, name)

    def run(self, *args, grid, warmup, **words):
        launches.Recorder(self.kernel, self.launches)[grid](*args, **words)


def launched(module, kernel, monkeypatch, heads=32, size=128):
    """The launch of a kernel, given what the backend gives: two requests, heads that share keys."""
    bottom = Bottom(kernel.fn)
    monkeypatch.setattr(kernel, "fn", bottom)
    intra, carried = module.chunk_gated_delta_rule_fwd_intra, module.chunk_gated_delta_rule_fwd_h
    tokens, dtype = 70, torch.bfloat16
    key = torch.empty(1, tokens, heads // 2, size, dtype=dtype)
    value = torch.empty(1, tokens, heads, 128, dtype=dtype)
    gate = torch.empty(1, tokens, heads)
    given = dict(cu_seqlens=torch.tensor([0, 3, tokens], dtype=torch.int32))
    given["chunk_indices"] = torch.tensor([[0, 0], [1, 0], [1, 1]], dtype=torch.int32)
    if kernel is solve(module):
        monkeypatch.setitem(intra.__globals__, "recompute_w_u_fwd", lambda **_: (None, None))
        intra(k=key, v=value, g=gate, beta=gate, **given)
    else:
        carried(
            k=key,
            w=torch.empty(1, tokens, heads, size, dtype=dtype),
            u=value,
            g=gate,
            initial_state=torch.empty(3, heads, 128, size),
            initial_state_indices=torch.tensor([1, 2], dtype=torch.int32),
            **given,
        )
    return bottom.launches[-1]


# Bytes of a thread's registers that wait in memory. One warp of the solving kernel was the fastest
# on Hopper all the same.
SPILLED = 1024


@pytest.mark.parametrize("of, size, spilled", [(solve, 128, SPILLED), (states, 256, 0)])
def test_kernels_fit_hopper(chunk, hopper, monkeypatch, of, size, spilled):
    """The one that carries states takes a key's head of 256 at most."""
    module = chunk()
    made = launched(module, of(module), monkeypatch, size=size).compiled(90)
    assert made.spilled <= spilled and made.shared <= HOPPER, made
    assert not made.miscompiled, made.miscompiled
