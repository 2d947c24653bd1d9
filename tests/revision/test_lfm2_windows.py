"""Which windows LFM2's short convolutions read and write: the release's own layers, on the CPU."""

import importlib
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.12")
LAYERS = pytest.mark.parametrize(
    ("module", "layer"), [("lfm2", "Lfm2ShortConv"), ("lfm2_moe", "Lfm2MoeShortConv")]
)
# by request number; a row that fills a graph up carries request number 0
SLOTS = [30, 31, 7, 4]
PADDING = -1


def called(monkeypatch, module, layer, batch, tokens):
    """The options of the one convolution that a forward of `tokens` (T, 2) calls."""
    source = importlib.import_module(f"sglang.srt.models.{module}")
    calls = []

    def convolution(inputs, *_, **options):
        calls.append(options)
        return inputs

    monkeypatch.setattr(source, "causal_conv1d_fn", convolution)
    monkeypatch.setattr(source, "causal_conv1d_update", convolution)
    own = SimpleNamespace(
        layer_idx=0,
        in_proj=lambda hidden: (hidden.repeat(1, 3), None),
        out_proj=lambda hidden: (hidden, None),
        conv_weight=None,
        conv_bias=None,
    )
    getattr(source, layer).forward(own, tokens, batch)
    (options,) = calls
    return options


def batch_of(requests, mode, slots, **lengths):
    """A ForwardBatch with what the layers of each release take their slots from."""
    cache = SimpleNamespace(conv=[None])
    pool = SimpleNamespace(
        mamba2_layer_cache=lambda _: cache,
        get_mamba_indices=lambda numbers: torch.tensor(SLOTS)[numbers],
    )
    metadata = SimpleNamespace(mamba_cache_indices=torch.tensor(slots, dtype=torch.int32))
    backend = SimpleNamespace(linear_attn_backend=SimpleNamespace(forward_metadata=metadata))
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_idle=lambda: False, is_decode=lambda: mode == "decode"),
        req_pool_indices=torch.tensor(requests),
        req_to_token_pool=pool,
        attn_backend=backend,
        **lengths,
    )


@LAYERS
@pytest.mark.parametrize("prefixes", [[0], [16], [0, 16, 5]])
def test_a_prompt_goes_on_from_its_beginning(monkeypatch, module, layer, prefixes):
    requests = [3, 1, 2][: len(prefixes)]
    batch = batch_of(
        requests,
        "extend",
        [SLOTS[request] for request in requests],
        extend_prefix_lens=torch.tensor(prefixes),
        extend_start_loc=torch.arange(0, 4 * len(prefixes), 4, dtype=torch.int32),
    )
    tokens = torch.zeros(4 * len(prefixes), 2)
    options = called(monkeypatch, module, layer, batch, tokens)
    assert options["cache_indices"].tolist() == [SLOTS[request] for request in requests]
    assert options["has_initial_state"].tolist() == [prefix > 0 for prefix in prefixes]


@pytest.mark.revision(">=0.5.9,<0.5.11")
@LAYERS
def test_a_decoded_token_moves_its_own_window(monkeypatch, module, layer):
    batch = batch_of([3, 1, 0], "decode", [SLOTS[3], SLOTS[1], PADDING])
    options = called(monkeypatch, module, layer, batch, torch.zeros(3, 2))
    assert options["conv_state_indices"].tolist() == [SLOTS[3], SLOTS[1], PADDING]
    assert options["conv_state_indices"].dtype == torch.int32
