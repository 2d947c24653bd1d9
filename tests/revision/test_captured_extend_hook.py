"""Mamba2 layers inside the prefill graph of 0.5.22 and 0.5.23, through upstream's own hook for
linear attention."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import graph, late, process, segments, state_pool

with late.modules():
    from sglang.srt import runtime_context
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.prefill_graph.captured import layers, mamba2

pytestmark = pytest.mark.revision(">=0.5.22,<0.5.24")
SWITCH = "SGLANG_PREFILL_GRAPH_STATES"


@pytest.fixture
def runner(build_model, monkeypatch):
    """A ModelRunner as far as the backend looks at it, whose mixers' kernels fit."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(mamba2, "why_not", lambda *_: None)
    monkeypatch.setattr(mamba2, "chunk", lambda _: layers.tiles.CHUNK)
    arguments = SimpleNamespace(**vars(process.default_server_args()))
    return SimpleNamespace(
        model=build_model("nemotron_h", device="cpu", dtype=torch.float32),
        req_to_token_pool=state_pool.Named(),
        dtype=torch.float32,
        device="cpu",
        server_args=arguments,
        tp_rank=0,
    )


def linear(runner):
    """The release's backend of Mamba2, without what its __init__ takes of a whole runner."""
    made = hybrid_linear_attn_backend.Mamba2AttnBackend.__new__(
        hybrid_linear_attn_backend.Mamba2AttnBackend
    )
    made._model_runner = runner
    made.req_to_token_pool = runner.req_to_token_pool
    made.device = "cpu"
    return made


def batch_of(lengths, prefixes):
    return graph.prefill_batch(
        sum(lengths),
        batch_size=len(lengths),
        req_pool_indices=torch.arange(len(lengths)),
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens_cpu=prefixes,
    )


def hybrid(backend, monkeypatch):
    """The release's hybrid backend around it, as the breakable graph's server has it."""
    monkeypatch.setattr(
        hybrid_linear_attn_backend, "check_cuda_graph_backend", lambda phase, wanted: True
    )
    full = SimpleNamespace(
        token_to_kv_pool=None,
        req_to_token_pool=None,
        kv_index_translator=None,
        needs_cpu_seq_lens=False,
        use_captured_forward_metadata_for_breakable_cuda_graph=False,
        init_forward_metadata=lambda batch: None,
    )
    return hybrid_linear_attn_backend.HybridLinearAttnBackend(full, backend, [])


def test_the_runner_keeps_tables_and_fills_them(runner, monkeypatch):
    backend = linear(runner)
    both = hybrid(backend, monkeypatch)
    assert both.use_captured_forward_metadata_for_breakable_cuda_graph
    assert both.prefill_cuda_graph_max_batch_size == 64 and not both.linear_extend_in_graph()
    made = both.init_forward_metadata_for_breakable_cuda_graph_capture(batch_of([20], [0]))
    assert both.linear_extend_in_graph() and made.tokens == made.requests == 20
    assert made.plan.cu.tolist() == [0, *[20] * 20] and not made.slots.any()
    another = both.init_forward_metadata_for_breakable_cuda_graph_capture(batch_of([100], [0]))
    assert another.requests == 64
    both.prepare_forward_metadata_for_breakable_cuda_graph_replay(made, batch_of([2, 9], [0, 5]))
    assert backend.prefill_graph_metadata is made
    assert made.plan.cu[:4].tolist() == [0, 2, 11, 11] and made.warm[:3].tolist() == [0, 1, 0]
    assert made.slots[:2].tolist() == [101, 102]


def keep_states(runner, monkeypatch, step):
    """A server whose prefix cache keeps the states of prefills, behind each `step` tokens."""
    monkeypatch.setattr(runner.req_to_token_pool, "enable_mamba_extra_buffer", True, raising=False)
    monkeypatch.setattr(runtime_context, "mamba_cache_chunk_size", lambda: step)


def test_states_for_the_prefix_cache_are_left_in_the_graph(runner, monkeypatch):
    """Behind the last whole step, in the slots by their names inside of the pool."""
    keep_states(runner, monkeypatch, 128)
    both = hybrid(linear(runner), monkeypatch)
    made = both.init_forward_metadata_for_breakable_cuda_graph_capture(batch_of([512], [0]))
    assert not made.plan.track_rows.any()
    asked = batch_of([200, 9, 128], [0, 5, 128])
    asked.extend_seq_lens = torch.tensor([200, 9, 128])
    asked.extend_prefix_lens = torch.tensor([0, 5, 128])
    asked.mamba_track_mask = torch.tensor([True, False, True])
    asked.mamba_track_seqlens = torch.tensor([200, -1, 256])
    asked.mamba_track_indices = torch.tensor([20, 21, 22])
    both.prepare_forward_metadata_for_breakable_cuda_graph_replay(made, asked)
    assert made.plan.track_rows[:4].tolist() == [128, 0, 128, 0]
    assert made.plan.track_slots[[0, 2]].tolist() == [120, 122]
    both.prepare_forward_metadata_for_breakable_cuda_graph_replay(made, batch_of([7], [0]))
    assert not made.plan.track_rows.any()


@pytest.mark.parametrize("how", ["captured", "break"])
@pytest.mark.parametrize("kind, place", [("nemotron_h", "mixer"), ("falcon_h1", "mamba")])
def test_layers_run_on_their_states_and_the_tables(
    build_model, runner, monkeypatch, kind, place, how
):
    """A captured call's Python does not run at a replay."""
    runner.model, seen = build_model(kind, device="cpu", dtype=torch.float32), []
    backend = linear(runner)
    assert backend.supports_prefill_graph_extend()

    def prepare(_, note, batch):
        def run(*given, **_):
            note("mixer")
            seen.append(given)
            return given[3] * 0

        batch.req_pool_indices, batch.extend_seq_lens_cpu = torch.arange(1), [8]
        monkeypatch.setattr(layers.mamba2, "run", run)
        if how == "captured":
            seen.append(backend.init_prefill_graph_metadata(batch))

    capture, replay = segments.of(runner.model, monkeypatch, prepare=prepare)
    mixers = [where for what, where in capture if what == "mixer"]
    assert mixers and set(mixers) == {segments.CAPTURED if how == "captured" else segments.BREAK}
    assert bool([what for what, _ in replay if what == "mixer"]) is (how != "captured")
    assert [what for what, _ in replay if what == "attention"]
    if how == "captured":
        made, (mixer, states, given, rows, *_), *_ = seen
        assert mixer is getattr(runner.model.model.layers[0], place) and given is made
        assert states == "the states of layer 0" and len(rows) == 8


@pytest.mark.parametrize(
    "how, reason",
    [
        ("states", "the prefix cache keeps states behind each 100 tokens, and chunks have 128"),
        ("hicache", "the hierarchical cache brings states layer by layer"),
        ("linker", "the hierarchical cache brings states layer by layer"),
        ("ranks", "layers gather tokens of other ranks, which may be idle"),
        ("tiles", "layer 0: no tiles"),
        ("another", "it has layers that do not ask"),
    ],
)
def test_layers_break_and_the_log_says_why(runner, monkeypatch, caplog, how, reason):
    assert linear(runner).supports_prefill_graph_extend()
    if how == "states":
        keep_states(runner, monkeypatch, 100)
    elif how == "hicache":
        runner.server_args.enable_hierarchical_cache = True
    elif how == "linker":
        runner.server_args.enable_unified_cache_external_linker = True
    elif how == "ranks":
        runner.server_args.enable_dp_attention = True
    elif how == "tiles":
        monkeypatch.setattr(mamba2, "why_not", lambda *_: "no tiles")
    else:
        runner.model.another = torch.nn.ModuleList([type("MambaMixer2", (torch.nn.Module,), {})()])
    with caplog.at_level(logging.INFO):
        assert not linear(runner).supports_prefill_graph_extend()
    assert (
        f"Layers with recurrent states run between the prefill graph's segments: {reason}"
        in caplog.messages
    )


@pytest.mark.parametrize("said", ["break", "capture", "all"])
def test_one_switch_turns_it_off(runner, monkeypatch, said):
    monkeypatch.setenv(SWITCH, said)
    assert linear(runner).supports_prefill_graph_extend() is (said != "break")
