"""The two split ops of sparse attention: their promises and their errors. The release's own indexer
and attention behind them are in test_nsa_pieces.py."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from host import graph, late

with late.modules():
    from sglang.srt.layers import radix_attention
    from sglang.srt.prefill_graph.piecewise import nsa

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.13")
ROWS, TOKENS, TOPK, HEADS, RANK, ROPE = 8, 5, 4, 2, 6, 2


class Indexer:
    """Stands in for the release's: selects the position of each token it is given, and keeps what
    that was. selects: False for no selection, or the selection itself."""

    index_topk = TOPK

    def __init__(self, selects=True):
        self.selects, self.given = selects, []

    def __call__(self, **words):
        self.given.append(words)
        if self.selects is True:
            return words["positions"][:, None].expand(-1, TOPK).int()
        return None if self.selects is False else self.selects


class Layer:
    """Stands in for RadixAttention."""

    layer_id, tp_q_head_num, v_head_dim = 1, HEADS, RANK


@pytest.fixture
def layer():
    return Layer()


@contextlib.contextmanager
def context(layer, indexer, batch):
    """The forward context of a graph whose layer 1 is `layer`, with that indexer."""
    if indexer is not None:
        nsa._indexers[layer] = indexer
    with graph.forward_context(batch, [None, layer]):
        yield


def batch(tokens=TOKENS, **more):
    return SimpleNamespace(
        **{"extend_num_tokens": tokens, "out_cache_loc": torch.arange(ROWS) + 100, **more}
    )


def hidden(width=3):
    """[ROWS, width]: the row number in real rows, NaN in the others."""
    made = torch.arange(ROWS, dtype=torch.float32)[:, None].repeat(1, width)
    made[TOKENS:] = math.nan
    return made


def select(indexer):
    return nsa.select(indexer, hidden(), hidden(), torch.arange(ROWS), 1)


# The indexer's op


def test_the_indexer_sees_the_real_tokens_and_nothing_is_selected_behind_them(layer):
    """Nor does it store keys of padded rows: their slots are another request's, or nobody's."""

    class Notes(Indexer):
        def __call__(self, **words):
            self.slots = words["forward_batch"].out_cache_loc.tolist()
            return super().__call__(**words)

    indexer, given = Notes(), batch()
    with context(layer, indexer, given):
        topk = select(indexer)
    assert topk.dtype == torch.int32 and topk.shape == (ROWS, TOPK)
    assert topk[:TOKENS].eq(torch.arange(TOKENS)[:, None]).all() and topk[TOKENS:].eq(-1).all()
    (words,) = indexer.given
    assert words["layer_id"] == 1 and words["forward_batch"] is given
    assert [words[name].shape[0] for name in ("x", "q_lora", "positions")] == [TOKENS] * 3
    assert words["x"].isfinite().all() and words["q_lora"].isfinite().all()
    assert indexer.slots == [100, 101, 102, 103, 104] and len(given.out_cache_loc) == ROWS


def test_the_padded_slots_come_back_when_the_indexer_fails(layer):
    class Fails(Indexer):
        def __call__(self, **words):
            raise KeyError("no page")

    indexer, given = Fails(), batch()
    padded = given.out_cache_loc
    with context(layer, indexer, given), pytest.raises(KeyError, match="no page"):
        select(indexer)
    assert given.out_cache_loc is padded


@pytest.mark.parametrize(
    "tokens, calls", [(TOKENS, 1), (0, 0)], ids=["the backend has no metadata", "no tokens"]
)
def test_where_nothing_is_selected_every_row_says_so(layer, tokens, calls):
    """Upstream's op died there: its indexer unpacked None (sglang#28644). No tokens are attended
    to without a call of the backend."""
    indexer, backend = Indexer(selects=False), Backend((tokens, HEADS * RANK))
    with context(layer, indexer, batch(tokens, attn_backend=backend)):
        assert select(indexer).eq(-1).all()
        assert attend(layer)[tokens:].eq(0).all()
    assert len(indexer.given) == len(backend.given) == calls


def test_a_batch_that_is_padded_itself_has_fewer_selections_than_rows(layer):
    """Tensor parallel dense layers pad a batch before the graph does; the release's indexer answers
    for requests' tokens alone."""

    indexer = selecting(TOKENS - 2, TOPK)
    with context(layer, indexer, batch()):
        topk = select(indexer)
    assert topk[:, 0].tolist() == [0, 0, 0, -1, -1, -1, -1, -1]


def test_drafts_that_are_verified_count_as_tokens(layer):
    indexer = Indexer()
    drafts = batch(None, batch_size=2, spec_info=SimpleNamespace(draft_token_num=3))
    with context(layer, indexer, drafts):
        select(indexer)
    assert len(indexer.given[0]["positions"]) == 6


def selecting(rows, width):
    """An indexer of `width` positions that selects TOPK of them for `rows` tokens."""
    indexer = Indexer()
    indexer.index_topk = width
    indexer.selects = torch.zeros(rows, TOPK, dtype=torch.int32)
    return indexer


@pytest.mark.parametrize(
    "rows, width, tokens",
    [(TOKENS + 1, TOPK, TOKENS), (TOKENS, TOPK + 1, TOKENS), (TOKENS, TOPK, ROWS + 1)],
    ids=["too many rows", "another width", "more tokens than rows"],
)
def test_errors_name_the_layer(layer, rows, width, tokens):
    indexer = selecting(rows, width)
    with context(layer, indexer, batch(tokens)), pytest.raises(ValueError, match="layer 1: "):
        select(indexer)


def test_an_indexer_that_is_not_listed_is_an_error(layer):
    """Without a context or a layer it is split_op's: test_prefill_graph_split_op.py."""
    with (
        context(layer, None, batch()),
        pytest.raises(RuntimeError, match="no indexer .* layer_id 1"),
    ):
        select(Indexer())


# The attention's op


def attend(layer, save=True, **more):
    query, key = hidden(HEADS * RANK).view(ROWS, HEADS, RANK), hidden(RANK).view(ROWS, 1, RANK)
    rope = {
        "q_rope": hidden(HEADS * ROPE).view(ROWS, HEADS, ROPE),
        "k_rope": hidden(ROPE).view(ROWS, 1, ROPE),
    }
    topk = torch.arange(ROWS, dtype=torch.int32)[:, None].repeat(1, TOPK)
    return nsa.attend(layer, query, key, key, save, topk, **{**rope, **more})


class Backend:
    """Stands in for the attention backend: twice the queries, in any shape; keeps what it got."""

    def __init__(self, shape):
        self.shape, self.given = shape, []

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache, **words):
        self.given.append((q, k, v, layer, save_kv_cache, words, forward_batch.out_cache_loc))
        return (2 * q).reshape(self.shape)


@pytest.mark.parametrize(
    "shape",
    [
        (TOKENS, HEADS, RANK),
        (TOKENS, HEADS * RANK),
        (1, TOKENS, HEADS, RANK),
        (TOKENS, 1, HEADS, RANK),
    ],
    ids=str,
)
def test_attention_works_on_the_real_tokens_and_zeroes_the_others(layer, shape):
    """Of any shape: kernels for decoding have an axis for requests, or one for their tokens."""
    backend = Backend(shape)
    with context(layer, None, batch(attn_backend=backend)):
        output = attend(layer)
    assert output.shape == (ROWS, HEADS * RANK)
    torch.testing.assert_close(
        output[:TOKENS],
        2 * torch.arange(TOKENS, dtype=torch.float32)[:, None].expand(-1, HEADS * RANK),
    )
    assert output[TOKENS:].eq(0).all()
    ((q, k, v, given, save, words, slots),) = backend.given
    assert given is layer and save is True and slots.tolist() == [100, 101, 102, 103, 104]
    assert {part.shape[0] for part in (q, k, v, *words.values())} == {TOKENS} and words[
        "topk_indices"
    ][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert sorted(words) == ["k_rope", "q_rope", "topk_indices"]


def test_keys_that_are_stored_already_stay_away(layer):
    backend = Backend((TOKENS, HEADS * RANK))
    with context(layer, None, batch(attn_backend=backend)):
        nsa.attend(
            layer,
            hidden(HEADS * RANK).view(ROWS, HEADS, RANK),
            None,
            None,
            False,
            torch.zeros(ROWS, TOPK, dtype=torch.int32),
        )
    ((_, k, v, _, save, words, _),) = backend.given
    assert k is v is None and save is False and list(words) == ["topk_indices"]


@pytest.mark.parametrize("save", [True, False])
def test_the_releases_attention_hands_on_whether_keys_are_to_be_stored(layer, save):
    """Stored again, keys that a fused kernel has stored would be those without their rotation."""
    attention = radix_attention.RadixAttention(HEADS, RANK, 1.0, num_kv_heads=1, layer_id=1)
    backend = Backend((TOKENS, HEADS * RANK))
    given = graph.prefill_batch(ROWS, extend_num_tokens=TOKENS, out_cache_loc=torch.arange(ROWS))
    given.attn_backend = backend
    query, key = hidden(HEADS * RANK), hidden(RANK)
    with graph.forward_context(given, [None, attention]):
        attention(
            query,
            key,
            key,
            given,
            save_kv_cache=save,
            topk_indices=torch.zeros(ROWS, TOPK, dtype=torch.int32),
        )
    assert [call[4] for call in backend.given] == [save]


# As ops


@pytest.mark.parametrize(
    "name, written",
    [("nsa_topk_with_output", "topk_indices"), ("nsa_attention_with_output", "output")],
)
def test_an_op_writes_its_output_alone(name, written):
    arguments = getattr(torch.ops.sglang, name).default._schema.arguments
    assert [one.name for one in arguments if one.alias_info] == [written]
