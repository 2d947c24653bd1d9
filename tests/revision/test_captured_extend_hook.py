"""Mamba2 layers and gated delta nets inside the prefill graph of 0.5.22 and 0.5.23, through
upstream's own hook for linear attention."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import graph, late, process, segments, state_pool
from test_captured_gdn import net

with late.modules():
    from sglang.srt import runtime_context
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton
    from sglang.srt.prefill_graph.captured import gdn, layers, mamba2

pytestmark = pytest.mark.revision(">=0.5.22,<0.5.24")


@pytest.fixture
def runner(build_model, monkeypatch):
    """A ModelRunner as far as the backend looks at it, whose mixers' kernels fit."""
    monkeypatch.delenv(layers.SWITCH, raising=False)
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
    return graph.batch_of(lengths, prefixes, req_pool_indices=torch.arange(len(lengths)))


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


@pytest.fixture
def nets(monkeypatch):
    """The release's backend of gated delta nets, as far as the hook looks at it."""
    monkeypatch.delenv(layers.SWITCH, raising=False)
    arguments = SimpleNamespace(**vars(process.default_server_args()))
    cache = SimpleNamespace(conv=[torch.zeros(3, 128, 3)], temporal=torch.zeros(3, 4, 16, 16))
    pool = SimpleNamespace(
        layer_transfer_counter=None, mamba2_layer_cache=lambda layer_id: cache, kept=cache
    )
    made = gdn_backend.GDNAttnBackend.__new__(gdn_backend.GDNAttnBackend)
    made._model_runner = SimpleNamespace(
        server_args=arguments,
        req_to_token_pool=pool,
        tp_rank=0,
        dtype=torch.bfloat16,
        model=torch.nn.ModuleList([net()]),
    )
    made.req_to_token_pool, made.enable_mis = pool, False
    made.kernel_dispatcher = SimpleNamespace(extend_kernel=gdn_triton.TritonGDNKernel())
    return made


REFUSED = {  # what of the server is changed, and why Mamba2 layers break then
    "states": (
        lambda runner, patch: keep_states(runner, patch, 100),
        "the prefix cache keeps states behind each 100 tokens, and chunks have 128",
    ),
    "linker": (
        lambda runner, _: setattr(runner.server_args, "enable_unified_cache_external_linker", True),
        "the hierarchical cache brings states layer by layer",
    ),
    "another": (
        lambda runner, _: setattr(
            runner.model, "another", type("MambaMixer2", (torch.nn.Module,), {})()
        ),
        "it has layers that do not ask",
    ),
}


def assert_breaks(backend, reason, caplog):
    with caplog.at_level(logging.INFO):
        assert not backend.supports_prefill_graph_extend()
    said = f"Layers with recurrent states run between the prefill graph's segments: {reason}"
    assert said in caplog.messages


@pytest.mark.parametrize("how", REFUSED)
def test_layers_break_and_the_log_says_why(runner, monkeypatch, caplog, how):
    """Under DP attention and HiCache, too: test_states_table.py. Reasons of a kernel, a layer and
    its states: test_captured_gdn.py."""
    change, reason = REFUSED[how]
    assert linear(runner).supports_prefill_graph_extend()
    change(runner, monkeypatch)
    assert_breaks(linear(runner), reason, caplog)


def test_nets_break_where_prompts_are_cut_and_the_log_says_so(nets, caplog):
    assert nets.supports_prefill_graph_extend()
    nets.enable_mis = True
    assert_breaks(nets, "--enable-mis cuts prompts into items", caplog)


@pytest.mark.parametrize("said", ["break", "capture", "all"])
def test_one_switch_turns_it_off(runner, nets, monkeypatch, said):
    monkeypatch.setenv(layers.SWITCH, said)
    for backend in (linear(runner), nets):
        assert backend.supports_prefill_graph_extend() is (said != "break")


def test_a_draft_without_nets_fills_no_tables(nets, caplog):
    nets._model_runner.model = torch.nn.ModuleList()
    with caplog.at_level(logging.INFO):
        assert not nets.supports_prefill_graph_extend()
    assert not [line for line in caplog.messages if "recurrent" in line]


def test_a_layer_runs_on_its_states_and_the_tables(nets, monkeypatch):
    seen = []
    monkeypatch.setattr(gdn, "run", lambda *given: seen.append(given) or "output")
    assert nets.supports_prefill_graph_extend()
    nets.prefill_graph_metadata = "tables"
    assert nets.extend_in_graph(SimpleNamespace(layer_id=0), "qkv", "a", "b") == "output"
    assert seen[0][1:] == (nets.req_to_token_pool.kept, "tables", "qkv", "a", "b")


class Reached(Exception):
    pass


def test_an_eager_prefill_knows_of_no_tables(nets, monkeypatch):
    def reached(self, batch):
        assert not self.prefill_graph_extend_active()
        raise Reached

    nets.prefill_graph_metadata = "tables"
    monkeypatch.setattr(
        hybrid_linear_attn_backend.MambaAttnBackendBase, "init_forward_metadata", reached
    )
    with pytest.raises(Reached):
        nets.init_forward_metadata(None)


@pytest.mark.parametrize("verify", [False, True])
def test_drafts_are_verified_without_tables(verify, nets, monkeypatch):
    """A verified batch has its own path, whatever the last prefill's tables are."""

    class Own:
        @property
        def query_start_loc(self):
            raise Reached

    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_target_verify=lambda: verify))
    nets.prefill_graph_metadata, nets.forward_metadata = "tables", Own()
    monkeypatch.setattr(nets, "extend_in_graph", lambda *_: "captured", raising=False)
    given = None, batch, torch.zeros(1, 8), None, None
    if verify:
        with pytest.raises(Reached):
            nets.forward_extend(*given)
    else:
        assert nets.forward_extend(*given) == "captured"
