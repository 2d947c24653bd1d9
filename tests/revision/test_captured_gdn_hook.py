"""Gated delta nets inside the prefill graph of 0.5.23, through upstream's own hook for
linear attention, where asked for."""

import logging
from types import SimpleNamespace

import pytest
import torch
from host import late, process

with late.modules():
    from sglang.srt.layers.attention import hybrid_linear_attn_backend
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton

pytestmark = pytest.mark.revision(">=0.5.23,<0.5.24")
SWITCH = "SGLANG_PREFILL_GRAPH_STATES"
COLD_AND_WARM = [([5, 1], [0, 4], None), ([1, 1, 3], [2, 0, 1], None)]
REFERENCE = "compare_gdn_hook"
CASES = {
    "cold, warm, and one after the other": dict(batches=COLD_AND_WARM, size=8),
    "more than a chunk": dict(batches=[([2, 66, 1], [0, 3, 9], None), ([70], [0], None)], size=72),
    "states are kept behind whole chunks": dict(
        batches=[
            ([2, 66, 4], [0, 64, 9], [0, 66, 0]),
            ([64, 7], [0, 64], [64, 0]),
            ([70], [0], [70]),
            ([70], [64], None),
        ],
        size=72,
        tracks=True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replay_has_the_bits_of_an_eager_prefill(case, compared):
    """So have the states that the prefix cache keeps. Rows behind the batches are NaN, and zero in
    what comes out."""
    found = compared[case]
    assert found["output"] == found["states"] == found["kept"] == found["behind"] == 0, found
    assert found["others"] == found["written"] == 0, found


@pytest.fixture
def backend(monkeypatch):
    """The release's backend, as far as the hook looks at it."""
    monkeypatch.setenv(SWITCH, "all")
    arguments = SimpleNamespace(**vars(process.default_server_args()))
    cache = SimpleNamespace(conv=[torch.zeros(1, 3, 8, 3)], temporal=torch.zeros(1, 3, 2, 4, 4))
    pool = SimpleNamespace(
        layer_transfer_counter=None, mamba_pool=SimpleNamespace(mamba_cache=cache)
    )
    made = gdn_backend.GDNAttnBackend.__new__(gdn_backend.GDNAttnBackend)
    made._model_runner = SimpleNamespace(
        server_args=arguments, req_to_token_pool=pool, tp_rank=0, model=None
    )
    made.req_to_token_pool, made.enable_mis = pool, False
    made.kernel_dispatcher = SimpleNamespace(extend_kernel=gdn_triton.TritonGDNKernel())
    return made


def another_kernel(backend):
    backend.kernel_dispatcher.extend_kernel = type("FlashInferGDNKernel", (), {})()


def strided(backend):
    cache = backend.req_to_token_pool.mamba_pool.mamba_cache
    cache.temporal = cache.temporal.transpose(1, 2)


REFUSED = {
    "another kernel": (
        another_kernel,
        "FlashInferGDNKernel computes their prefills; --linear-attn-prefill-backend triton captures"
        " them",
    ),
    "items": (
        lambda made: setattr(made, "enable_mis", True),
        "--enable-mis cuts prompts into items",
    ),
    "strides": (strided, "states do not lie one behind the other in their pool"),
    "hicache": (
        lambda made: setattr(made._model_runner.server_args, "enable_hierarchical_cache", True),
        "the hierarchical cache brings states layer by layer",
    ),
    "linker": (
        lambda made: setattr(
            made._model_runner.server_args, "enable_unified_cache_external_linker", True
        ),
        "the hierarchical cache brings states layer by layer",
    ),
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


@pytest.mark.parametrize("said", [None, "break", "capture"])
def test_nets_break_where_nobody_asks(said, backend, monkeypatch):
    monkeypatch.delenv(SWITCH) if said is None else monkeypatch.setenv(SWITCH, said)
    assert not backend.supports_prefill_graph_extend()


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
