"""Gated delta nets inside the prefill graph of 0.5.22 and 0.5.23, through upstream's own hook for
linear attention."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import late, process
from test_captured_gdn import net

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton
    from sglang.srt.prefill_graph.captured import gdn

pytestmark = pytest.mark.revision(">=0.5.22,<0.5.24")
SWITCH = "SGLANG_PREFILL_GRAPH_STATES"


@pytest.fixture
def backend(monkeypatch):
    """The release's backend, as far as the hook looks at it."""
    monkeypatch.delenv(SWITCH, raising=False)
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


def another_kernel(backend):
    backend.kernel_dispatcher.extend_kernel = type("FlashInferGDNKernel", (), {})()


def strided(backend):
    backend.req_to_token_pool.kept.temporal = torch.zeros(3, 4, 32, 16)[:, :, ::2]


REFUSED = {
    "another kernel": (
        another_kernel,
        "prefills run in a FlashInferGDNKernel; --linear-attn-prefill-backend triton captures them",
    ),
    "items": (
        lambda made: setattr(made, "enable_mis", True),
        "--enable-mis cuts prompts into items",
    ),
    "strides": (strided, "layer 0: its states are not in one piece"),
    "ranks": (
        lambda made: setattr(made._model_runner.server_args, "enable_dp_attention", True),
        "layers gather tokens of other ranks, which may be idle",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_nets_break_and_the_log_says_why(how, backend, caplog):
    change, reason = REFUSED[how]
    assert backend.supports_prefill_graph_extend()
    change(backend)
    with caplog.at_level(logging.INFO):
        assert not backend.supports_prefill_graph_extend()
    assert (
        f"Layers with recurrent states run between the prefill graph's segments: {reason}"
        in caplog.messages
    )


@pytest.mark.parametrize("said", ["break", "capture", "all"])
def test_one_switch_turns_it_off(said, backend, monkeypatch):
    monkeypatch.setenv(SWITCH, said)
    assert backend.supports_prefill_graph_extend() is (said != "break")


def test_a_draft_without_nets_fills_no_tables(backend, caplog):
    backend._model_runner.model = torch.nn.ModuleList()
    with caplog.at_level(logging.INFO):
        assert not backend.supports_prefill_graph_extend()
    assert not [line for line in caplog.messages if "recurrent" in line]


def test_a_layer_runs_on_its_states_and_the_tables(backend, monkeypatch):
    seen = []
    monkeypatch.setattr(gdn, "run", lambda *given: seen.append(given) or "output")
    assert backend.supports_prefill_graph_extend()
    backend.prefill_graph_metadata = "tables"
    assert backend.extend_in_graph(SimpleNamespace(layer_id=0), "qkv", "a", "b") == "output"
    assert seen[0][1:] == (backend.req_to_token_pool.kept, "tables", "qkv", "a", "b")


class Reached(Exception):
    pass


def test_an_eager_prefill_knows_of_no_tables(backend, monkeypatch):
    def reached(self, batch):
        assert not self.prefill_graph_extend_active()
        raise Reached

    backend.prefill_graph_metadata = "tables"
    monkeypatch.setattr(
        hybrid_linear_attn_backend.MambaAttnBackendBase, "init_forward_metadata", reached
    )
    with pytest.raises(Reached):
        backend.init_forward_metadata(None)


@pytest.mark.parametrize("verify", [False, True])
def test_drafts_are_verified_without_tables(verify, backend, monkeypatch):
    """A verified batch has its own path, whatever the last prefill's tables are."""

    class Own:
        @property
        def query_start_loc(self):
            raise Reached

    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_target_verify=lambda: verify))
    backend.prefill_graph_metadata, backend.forward_metadata = "tables", Own()
    monkeypatch.setattr(backend, "extend_in_graph", lambda *_: "captured", raising=False)
    given = None, batch, torch.zeros(1, 8), None, None
    if verify:
        with pytest.raises(Reached):
            backend.forward_extend(*given)
    else:
        assert backend.forward_extend(*given) == "captured"
