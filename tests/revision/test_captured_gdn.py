"""Gated delta nets inside the breakable graph: what is launched and computed, and refused."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from host import interpreted, late, launches, process

with late.modules():
    from sglang.srt.layers import radix_linear_attention
    from sglang.srt.prefill_graph.captured import gdn, layers, tables
    from sglang.srt.prefill_graph.compat import delta_rule, features
    from sglang.srt.prefill_graph.kernels import delta_states

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.24")

WARM = [66, 1, 3], [7, 3, 0]
# Interpreted kernels are slow: each case is as small as what it shows.
CASES = {
    "a full table": dict(batches=[([3, 7, 2], [0, 1, 0])], rows=16, places=3),
    "single tokens": dict(batches=[([1, 1, 1, 1], [0, 9, 0, 1])], rows=8, places=4),
    "one batch after the other": dict(batches=[WARM, ([1], [3])], rows=72, places=4),
}
# states that the prefix cache keeps: of a last token, of a whole chunk, and of a branching point
KEPT = {
    "states for the prefix cache": dict(
        batches=[
            ([64, 5, 70], [0, 3, 7], [64, -1, 70]),
            ([3, 130], [0, 9], [-1, 65]),
            ([1], [3], [-1]),
        ],
        rows=144,
        places=4,
        step=64,
    ),
    "states of large pages": dict(
        batches=[([9, 130], [128, 0], [-1, 130])], rows=144, places=4, step=128
    ),
}
LEFT = [3, 1]
FAR = 1 << 20
BEGUN = {
    "chunks": dict(lengths=[65, 3], warm=[False, True], rows=192, places=4, parts=0),
    "chunks in parts": dict(lengths=[65, 20], warm=[True, False], rows=128, places=3, parts=4),
}
WORK = {
    "without empty places": dict(lengths=[3], rows=3, places=1),
    "with empty places": dict(lengths=[3], rows=8, places=4),
}


@pytest.fixture(scope="module")
def compared():
    return interpreted.run("host.references.compare_captured_gdn", CASES | BEGUN | WORK)


@pytest.mark.parametrize("case", CASES)
def test_output_and_states_are_those_of_the_releases_layer_bit_for_bit(case, compared):
    """NaN stands behind every batch. From the plain layer they differ as float16 does."""
    found = compared[case]
    assert found["bits"] == 0
    assert found["others"] == 0
    assert found["behind"] == 0.0
    assert all(found[name] < 0.01 for name in ("output", "conv", "ssm")), found


@pytest.mark.revision(">=0.5.13")
@pytest.mark.parametrize("case, left", [*zip(KEPT, LEFT)], ids=str)
def test_the_prefix_cache_keeps_what_an_eager_prefill_keeps_bit_for_bit(case, left):
    """Windows and states, in the slots that the batch names; no other slot changes."""
    [found] = interpreted.run("host.references.compare_captured_gdn", {case: KEPT[case]}).values()
    assert found["bits"] == found["others"] == 0 and found["kept"] == left


def test_places_behind_a_batch_have_no_chunk_and_nobodys_slot(compared):
    """Another batch had filled the table. Only requests that begin have their states zeroed."""
    found = compared["chunks"]
    assert found["pairs"] == [[0, 0], [0, 1], [1, 0]] + [[0, FAR]] * 4
    assert found["slots"] == [1, 2, 0, 0] and found["zeroed"] == [1] and found["parts"] is None


def test_chunks_are_cut_into_parts_that_have_rows(compared):
    found = compared["chunks in parts"]
    first = [[0, 0], [0, 1], [0, 2], [0, 3]]
    second = [[0, 4], [0, FAR], [0, FAR], [0, FAR]]
    third = [[1, 0], [1, 1], [1, FAR], [1, FAR]]
    assert found["parts"] == first + second + third + [[0, FAR]] * 8
    assert found["slots"] == [1, 2, 0] and found["zeroed"] == [2]


def test_places_without_a_request_read_nothing(compared):
    few, many = (compared[case] for case in WORK)
    assert few == many and all(few.values())


@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("pool", ["float32", "bfloat16"])
def test_the_first_launch_compiles_for_hopper(monkeypatch, pool, parts):
    """In Qwen3-Next's shape on one GPU."""
    noted = []
    recorder = launches.Recorder(delta_states._begin_kernel, noted)
    monkeypatch.setattr(delta_states, "_begin_kernel", recorder)
    made = tables.Tables(512, 32, gdn.CHUNK, torch.device("cpu"))
    states = torch.empty(3, 32, 128, 128, dtype=getattr(torch, pool))
    delta_states.begin(states, made.plan, made.owner, made.slots, made.warm, parts)
    [launch] = noted
    assert launch.compiled(90).spilled == 0


def test_wrappers_look_their_tables_up_inside_alone():
    """Each module of the chain keeps the two functions under names of its own."""
    package = sys.modules[delta_rule.rule().__module__].__package__
    chunk, chunk_delta_h, chunk_o = (
        importlib.import_module(f"{package}.{name}")
        for name in ("chunk", "chunk_delta_h", "chunk_o")
    )
    own = chunk_delta_h.prepare_chunk_indices, chunk_delta_h.prepare_chunk_offsets
    assert callable(delta_rule.rule()) and callable(delta_rule.gates()) and chunk
    with pytest.raises(KeyError), delta_rule.chunked_by("pairs", "parts", "offsets"):
        assert chunk_delta_h.prepare_chunk_indices(None, 64) == "pairs"
        assert chunk_delta_h.prepare_chunk_offsets(None, 64) == "offsets"
        assert chunk_o.prepare_chunk_indices(None, 16) == "pairs"
        if delta_rule.solves_parts():
            from sglang.srt.layers.attention.fla import solve_tril

            assert solve_tril.prepare_chunk_indices(None, 16) == "parts"
            assert solve_tril.prepare_chunk_indices(None, 64) == "pairs"
        raise KeyError
    assert own == (chunk_delta_h.prepare_chunk_indices, chunk_delta_h.prepare_chunk_offsets)


# --- which are captured


def net(**changes):
    """A RadixLinearAttention of the release, and its layer of the pool."""
    given = dict(
        layer_id=0,
        num_q_heads=2,
        num_k_heads=2,
        num_v_heads=4,
        head_q_dim=16,
        head_k_dim=16,
        head_v_dim=16,
        conv_weights=torch.zeros(128, 4),
        bias=None,
        activation="silu",
        A_log=torch.zeros(4),
        dt_bias=torch.zeros(4),
    )
    return radix_linear_attention.RadixLinearAttention(**given | changes)


def runner(
    monkeypatch,
    switch="all",
    kernel="TritonGDNKernel",
    backend="GDNAttnBackend",
    states=None,
    net=net,
    **changes,
):
    """A ModelRunner with a gated delta net and a layer of attention, as far as it is looked at."""
    monkeypatch.delenv(layers.SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(layers.SWITCH, switch)
    states = torch.zeros(3, 4, 16, 16) if states is None else states
    kept = SimpleNamespace(conv=[torch.zeros(3, 128, 3)], temporal=states)
    dispatcher = SimpleNamespace(extend_kernel=type(kernel, (), {})())
    linear = type(backend, (), {"kernel_dispatcher": dispatcher})()
    arguments = {name: changes.pop(name) for name in ("speculative_algorithm",) if name in changes}
    given = dict(
        attention_layers=[net(), object()],
        req_to_token_pool=SimpleNamespace(mamba2_layer_cache=lambda layer_id: kept),
        attn_backend=SimpleNamespace(linear_attn_backend=linear),
        dtype=torch.bfloat16,
        server_args=process.default_server_args(),
    )
    for name, value in arguments.items():
        setattr(given["server_args"], name, value)
    return SimpleNamespace(**given | changes)


@pytest.mark.parametrize("switch", [None, "all"], ids=["by default", "asked for"])
@pytest.mark.parametrize("drafts", [None, "EAGLE"])
def test_nets_are_captured(monkeypatch, switch, drafts):
    changes = dict(speculative_algorithm=drafts) if drafts else {}
    made = layers.of(runner(monkeypatch, switch=switch, **changes))
    assert isinstance(made, layers.Captured)
    assert made.tables(256, "cpu").plan.chunk == gdn.CHUNK


REFUSED = {
    "switched off": (dict(switch="break"), "SGLANG_PREFILL_GRAPH_STATES=break is set"),
    "Kimi's attention": (
        dict(backend="KDAAttnBackend"),
        "linear attention runs in a KDAAttnBackend, not in a GDNAttnBackend",
    ),
    "another kernel": (
        dict(kernel="FlashInferGDNKernel"),
        "prefills run in a FlashInferGDNKernel; --linear-attn-prefill-backend triton captures them",
    ),
    "no pool": (dict(req_to_token_pool=None), "there is no pool of states"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_servers_that_keep_the_breaks_say_why(case, monkeypatch):
    changes, reason = REFUSED[case]
    assert layers.of(runner(monkeypatch, **changes)) == reason


@pytest.mark.revision("<0.5.13")  # as they look kept states up in another way
def test_early_releases_keep_the_breaks_for_the_prefix_cache(monkeypatch):
    asked = runner(monkeypatch)
    monkeypatch.setattr(layers.model_runner, "tracks_states", lambda runner: True)
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: 64)
    assert layers.of(asked) == "the prefix cache keeps states of each prefill"


def weights(*shape):
    return torch.zeros(*shape)


UNLIKE = {
    "three convolutions": (
        lambda: dict(conv_weights=(weights(32, 4),) * 3),
        "its convolution has weights for queries, keys and values apart",
    ),
    "a wider convolution": (
        lambda: dict(conv_weights=weights(128, 5)),
        "its convolution is not one of 4 tokens with SiLU",
    ),
    "another activation": (
        lambda: dict(activation="gelu"),
        "its convolution is not one of 4 tokens with SiLU",
    ),
    "another window": (
        lambda: dict(conv_weights=weights(96, 4)),
        "its convolution keeps (128, 3) for weights of (96, 4)",
    ),
    "groups": (
        lambda: dict(num_q_heads=3, num_k_heads=3),
        "4 heads of values are not divisible by 3 of keys",
    ),
    "large heads": (lambda: dict(head_k_dim=512), "its heads of keys are larger than 256"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_nets_that_keep_the_breaks_say_why(case, monkeypatch):
    changes, reason = UNLIKE[case]
    asked = runner(monkeypatch, net=lambda: net(**changes()))
    assert layers.of(asked) == f"layer 0: {reason}"


def test_states_that_are_not_in_one_piece_would_be_copied(monkeypatch):
    asked = runner(monkeypatch, states=torch.zeros(3, 4, 32, 16)[:, :, ::2])
    assert layers.of(asked) == "layer 0: its states are not in one piece"
    asked = runner(monkeypatch, dtype=torch.float32)
    assert layers.of(asked) == "layer 0: the release has no kernels for torch.float32"


def test_an_unknown_value_is_one_warning_that_lists_the_values(monkeypatch, caplog):
    layers._warn.cache_clear()
    asked = runner(monkeypatch, switch="gdn")
    for _ in range(2):
        assert isinstance(layers.of(asked), layers.Captured)
    [text] = [message for message in caplog.messages if layers.SWITCH in message]
    assert text.startswith("SGLANG_PREFILL_GRAPH_STATES=gdn is not known, and goes for nothing.")
    assert all(f"{value or 'not set'}: " in text for value in layers.VALUES)


def test_the_release_calls_its_backend_and_kernel_so():
    linear = "sglang.srt.layers.attention.linear"
    if features.has(f"{linear}.gdn_backend"):
        assert features.mentions(f"{linear}.gdn_backend", f"class {delta_rule.BACKEND}(")
        assert features.mentions(f"{linear}.kernels.gdn_triton", f"class {delta_rule.KERNEL}(")
        assert features.mentions(f"{linear}.gdn_backend", "self.extend_kernel = triton_kernel")
    else:
        hybrid = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
        assert features.mentions(hybrid, f"class {delta_rule.BACKEND}(")
        assert not features.mentions(hybrid, "kernel_dispatcher")
