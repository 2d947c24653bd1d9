"""FlashInfer's attention plans the same wrapper inside the piecewise graph as outside."""

from types import SimpleNamespace

import pytest
from host import late

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager
    from sglang.srt.layers.attention import flashinfer_backend

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.14")
OTHER_MODES = ("decode_or_idle", "draft_extend", "target_verify", "dllm_extend")


@pytest.fixture
def planned():
    """A function that has the backend plan one prefill behind these prefixes, and returns what it
    planned: whether new tokens go through the ragged wrapper, and whether any prefix is cached."""

    def plan(prefixes: list[int], **settings: bool) -> tuple[bool, bool]:
        backend, told = object.__new__(flashinfer_backend.FlashInferAttnBackend), []
        update = lambda *_, use_ragged, **__: told.append(use_ragged)  # noqa: E731
        words = dict(
            is_multimodal=False,
            enable_mis=False,
            multi_item_scoring_delimiter=None,
            enable_deterministic=False,
            use_paged=False,
            use_sliding_window_kv_pool=False,
            prefill_split_tile_size=None,
            prefill_wrappers_paged=[],
            indices_updater_prefill=SimpleNamespace(
                update=update, attn_backend=SimpleNamespace(num_wrappers=1)
            ),
        )
        vars(backend).update(words | settings)
        backend.init_forward_metadata(_batch(prefixes))
        made = backend.forward_metadata
        assert told == [made.use_ragged]
        return made.use_ragged, made.extend_no_prefix

    return plan


def _batch(prefixes: list[int]) -> SimpleNamespace:
    names = "req_pool_indices seq_lens seq_lens_cpu seq_lens_sum encoder_lens"
    mode = SimpleNamespace(**{f"is_{name}": lambda *_, **__: False for name in OTHER_MODES})
    return SimpleNamespace(
        **dict.fromkeys(names.split()) | dict(seq_lens=prefixes),
        forward_mode=mode,
        extend_prefix_lens=prefixes,
        extend_prefix_lens_cpu=prefixes,
        extend_seq_lens_cpu=None,
        cross_attention_custom_mask=None,
        out_cache_loc=None,
        spec_info=None,
    )


@pytest.mark.parametrize("prefixes", [[0, 0], [0, 7]], ids=["cold", "cached beginnings"])
@pytest.mark.parametrize("setting", ["", "enable_deterministic", "is_multimodal"])
def test_the_graph_changes_no_wrapper(planned, prefixes, setting):
    """Another kernel rounds otherwise, and a router behind it picks other experts."""
    settings = {setting: True} if setting else {}
    eager = planned(prefixes, **settings)
    with piecewise_context_manager.enable_piecewise_cuda_graph():
        assert planned(prefixes, **settings) == eager
    assert eager[0] == (not setting)
