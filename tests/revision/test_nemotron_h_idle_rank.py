"""NemotronH on a rank without requests, under data-parallel attention: the release's own layer and
metadata, on the CPU."""

import importlib

import pytest
import torch

pytestmark = pytest.mark.revision(">=0.5.15,<0.5.21")
REQUEST = 4  # tokens


def idle(tokens):
    """A batch as ForwardBatch.prepare_mlp_sync_batch leaves it where the rank has no request and
    another rank prefills: one made-up request of as many tokens."""
    from host.graph import prefill_batch

    batch = prefill_batch(tokens)
    batch._original_batch_size = 0
    batch.num_token_non_padded_cpu = tokens
    return batch


@pytest.fixture
def layer(build_model):
    """The first layer of a NemotronH, a Mamba2 mixer."""
    return build_model("nemotron_h", device="cpu", hybrid_override_pattern="M-M*M-").model.layers[0]


def test_a_rank_without_requests_runs_no_mixer(layer, monkeypatch):
    """It did: the server died at "got split_sizes=[1, -1]", or wrote into a slot of the pool."""
    module = importlib.import_module("sglang.srt.models.nemotron_h")
    monkeypatch.setattr(module, "get_attn_backend", lambda: pytest.fail("the mixer ran"))
    rows = torch.randn(REQUEST, 128, dtype=torch.bfloat16)
    output = layer._forward_mamba(rows, idle(REQUEST))
    assert output.shape == rows.shape and not output.any()


@pytest.mark.parametrize("own", [None, 1], ids=["alone", "a rank with a request"])
def test_others_run_it(layer, monkeypatch, own):
    class Ran(Exception):
        pass

    def backend():
        raise Ran

    module = importlib.import_module("sglang.srt.models.nemotron_h")
    monkeypatch.setattr(module, "get_attn_backend", backend)
    batch = idle(REQUEST)
    batch._original_batch_size = own
    with pytest.raises(Ran):
        layer._forward_mamba(torch.randn(REQUEST, 128, dtype=torch.bfloat16), batch)
