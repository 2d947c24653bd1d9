"""Gated delta nets inside the graph whose rule runs in FlashInfer's kernel for compute capability
9.0: the default there from 0.5.19 on."""

import ast
import importlib.util
from pathlib import Path

import pytest
import test_captured_gdn
import torch
from host import late, launches

with late.modules():
    from sglang.srt.prefill_graph.captured import flashinfer_rule, gdn, layers
    from sglang.srt.prefill_graph.compat import delta_rule, features
    from sglang.srt.prefill_graph.kernels import delta_states

pytestmark = pytest.mark.revision(">=0.5.17,<0.5.24")
REFERENCE = "compare_flashinfer_gdn"
CASES = {
    "many places": dict(seed=838, batches=7, rows=150, places=5),
    "a full table": dict(seed=211, batches=4, rows=130, places=1),
    "large pages": dict(seed=268, batches=4, rows=280, places=3, step=128),
    "states of another type": dict(seed=6, batches=3, rows=80, places=3, states="bfloat16"),
    "fewer rows than a step": dict(seed=4, batches=4, rows=24, places=4),
    "no prefix cache": dict(seed=5, batches=4, rows=100, places=3, step=None),
}


PREFILL = "FlashInfer's function"
GIVEN = {"output_state", "use_cp", "state_checkpoints", "checkpoint_cu_starts"}
LEFT = {  # states that are kept, and those of them behind a step inside of a prompt
    "many places": (8, 5),
    "a full table": (4, 3),
    "large pages": (5, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_net_leaves_what_the_releases_eager_layer_leaves_bit_for_bit(case, compared):
    """On random batches. Rows behind them hold NaN, and so does what FlashInfer does not write."""
    found = compared[case]
    assert found["bits"] == found["others"] == found["behind"] == 0
    assert found["rows"] and (found["empty"] or CASES[case]["places"] == 1)
    left = found["kept"], found["inside"]
    assert left == LEFT.get(case, left)


def kernel(**changes):
    """The release's wrapper, as far as it is looked at, on compute capability 9.0."""
    given = dict(uses_state_checkpoints=True, use_state_pool=False, _prefill_fn=PREFILL)
    return type(delta_rule.FLASHINFER, (), given | changes)()


def asked(monkeypatch, extend_kernel):
    made = test_captured_gdn.runner(monkeypatch, switch=None)
    made.attn_backend.linear_attn_backend.kernel_dispatcher.extend_kernel = extend_kernel
    return layers.of(made)


def test_nets_are_captured_by_default(monkeypatch):
    made = asked(monkeypatch, kernel()).tables(40, "cpu")
    assert isinstance(made, flashinfer_rule.Sequences) and made.prefill is PREFILL
    assert made.cu.dtype == made.starts.dtype == torch.int64 and len(made.cu) == 41


def test_other_gpus_keep_the_breaks(monkeypatch):
    """From compute capability 10.0 on FlashInfer's kernel is another."""
    reason = asked(monkeypatch, kernel(use_state_pool=True))
    assert reason == "prefills run in a FlashInferGDNKernel; " + (
        "--linear-attn-prefill-backend triton captures them"
    )


def test_the_release_and_flashinfer_have_what_is_looked_at():
    wrapper = "sglang.srt.layers.attention.linear.kernels.gdn_flashinfer"
    for text in (
        f"class {delta_rule.FLASHINFER}(",
        "    uses_state_checkpoints = True",
        "self.use_state_pool = sm_major >= 10",
        "self._prefill_fn(",
    ):
        assert features.mentions(wrapper, text)
    folder = Path(importlib.util.find_spec("flashinfer").origin).parent
    own = (folder / "gdn_kernels/delta_rule_dsl/delta_rule_sm90.py").read_text()
    assert own.count("work_desc.seq_len != cutlass.Int32(0)") == 2  # of every role
    [function] = [
        node
        for node in ast.parse((folder / "gdn_prefill.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "chunk_gated_delta_rule"
    ]
    assert {one.arg for one in function.args.args} >= GIVEN


@pytest.mark.parametrize("pool", ["float32", "bfloat16"])
def test_launches_compile_for_hopper(monkeypatch, pool):
    """In Qwen3-Next's shape on one GPU."""
    noted = []
    for name in ("_move_kernel", "_clear_kernel", "_keep_kernel"):
        recorder = launches.Recorder(getattr(delta_states, name), noted)
        monkeypatch.setattr(delta_states, name, recorder)
    made = flashinfer_rule.Sequences(None, 64, 512, 32, gdn.CHUNK, torch.device("cpu"))
    states = torch.empty(3, 32, 128, 128, dtype=getattr(torch, pool))
    given = states, torch.empty(32, 32, 128, 128), made.plan, made.slots
    delta_states.move(*given, made.warm)
    delta_states.move(*given)
    delta_states.keep(*given)
    delta_states.clear_behind(torch.empty(512, 32, 128, dtype=torch.bfloat16), made.plan)
    assert [launch.compiled(90).spilled for launch in noted] == [0] * 4
