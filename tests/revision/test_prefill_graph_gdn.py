"""Qwen3-Next's gated delta net as a split op: against a plain reference, on padded rows, and with
one stream."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.6")

CASES = {
    "several sequences, padded": dict(lengths=[5, 3, 9], prefixes=[0, 0, 0], rows=24, poison="nan"),
    "cached prefixes": dict(lengths=[5, 3, 9], prefixes=[0, 4, 2], rows=24, poison="nan"),
    "no tail": dict(lengths=[8], prefixes=[0], rows=8, poison="nan"),
    "over chunk borders": dict(lengths=[70, 5], prefixes=[0, 7], rows=96, poison="inf"),
    "rows that no sequence covers": {},
}


@pytest.fixture(scope="module")
def compared():
    from host import interpreted

    return interpreted.run("host.references.compare_gdn", CASES)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case])
def test_op_equals_the_reference_and_padding_is_zero(case, compared):
    """Largest differences of float16 kernels from a float32 reference, on outputs of the size
    given."""
    found = compared[case]
    assert (
        found["output"] < 0.01 * max(1, found["size"])
        and found["conv"] < 0.01
        and found["state"] < 0.01
    ), found
    assert found["padding"] == 0.0
    assert found["others_untouched"]


def test_rows_that_no_sequence_covers_are_zero(compared):
    assert compared["rows that no sequence covers"] == {"finite": True, "zero": True}


@pytest.mark.parametrize(
    "batch, real",
    [
        (SimpleNamespace(extend_num_tokens=5), 5),
        (
            SimpleNamespace(
                extend_num_tokens=None, batch_size=2, spec_info=SimpleNamespace(draft_token_num=3)
            ),
            6,
        ),
    ],
    ids=["prefill", "verify drafts"],
)
def test_real_tokens(batch, real):
    from sglang.srt.prefill_graph.compat import ops

    assert ops.new_tokens(batch) == real


def test_projections_use_the_second_stream_outside_of_the_graph_only(build_model, monkeypatch):
    import contextlib

    import torch
    from host import graph

    made = build_model("qwen3_next", device="cpu", num_hidden_layers=4).model.layers[0].linear_attn
    used = []
    made.alt_stream = SimpleNamespace(wait_stream=used.append)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=used.append)
    )
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    hidden_states = torch.randn(8, 128, dtype=torch.bfloat16)
    with torch.no_grad():
        eager = made._forward_input_proj(hidden_states)
        assert len(used) == 2
        with graph.context_module().enable_piecewise_cuda_graph():
            in_graph = made._forward_input_proj(hidden_states)
    assert len(used) == 2
    assert all(torch.equal(a, b) for a, b in zip(eager, in_graph, strict=True))


def test_the_state_pool_counts_all_of_its_memory_without_a_patch():
    """sglang#13081 also changed this; in 0.5.5 as released the fields of the frozen dataclass are
    all counted."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MambaPool

    conv, temporal = torch.zeros(2, 3, 4, dtype=torch.bfloat16), torch.zeros(2, 5)
    assert MambaPool.State(conv=conv, temporal=temporal).mem_usage_bytes() == 48 + 40
    more = dict(intermediate_ssm=torch.zeros(7), intermediate_conv_window=torch.zeros(3))
    assert (
        MambaPool.SpeculativeState(conv=[conv, conv], temporal=temporal, **more).mem_usage_bytes()
        == 96 + 40 + 28 + 12
    )
