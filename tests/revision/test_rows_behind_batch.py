"""What attention's ops leave in the rows behind the batch, on the releases whose prefill graph is
breakable by default."""

import contextlib

import pytest
import torch
from host import bodies, late, segments
from host.served import published

with late.modules():
    from sglang.srt.layers import radix_attention
    from sglang.srt.model_executor.runner_utils import prefill_graph

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")
ops = pytest.mark.revision("<0.5.23")  # attention is a method from 0.5.23 on
HEADS, DIM, ROWS = 2, 4, 8
KEYS = torch.zeros(ROWS, HEADS, DIM)
GATES = {"as GDN": [(-1, HEADS)] * 2, "as KDA": [(1, -1, HEADS, DIM), (1, -1, HEADS)]}


class Backend:
    """Gives every row times two; refuses more of them than the batch has tokens."""

    def forward(
        self,
        q=None,
        k=None,
        v=None,
        layer=None,
        forward_batch=None,
        save_kv_cache=True,
        mixed_qkv=None,
        **kwargs,
    ):
        query = mixed_qkv if q is None else q
        assert query.numel() == forward_batch.num_token_non_padded_cpu * HEADS * DIM, (
            f"{tuple(query.shape)} for {forward_batch.num_token_non_padded_cpu} tokens"
        )
        for gate, size in ((kwargs.get("a"), (HEADS, HEADS * DIM)), (kwargs.get("b"), (HEADS,))):
            assert gate is None or gate.numel() / forward_batch.num_token_non_padded_cpu in size, (
                tuple(gate.shape)
            )
        result = torch.empty_like(query).copy_(query * 2)
        return result.view(1, -1, HEADS, DIM) if q is None else result


class BackendWithLse(Backend):
    """Gives the logarithm of each row's sum of weights as well."""

    def forward(self, q, *args, **kwargs):
        return super().forward(q, *args, **kwargs), q.new_ones(len(q), HEADS)


@contextlib.contextmanager
def served(tokens, handed=None, backend=Backend):
    """The release's own contexts around a replay of ROWS rows for a batch of `tokens`; handed: how
    many it was padded to before the runner had it, where another rank has more."""
    batch = segments.batch_of(
        tokens, out_cache_loc=torch.arange(ROWS), positions=torch.arange(ROWS)
    )
    layer = radix_attention.RadixAttention(HEADS, DIM, 1.0, num_kv_heads=HEADS, layer_id=0)
    with published(backend()), segments.forward_context_of(batch, [layer], ROWS, handed or tokens):
        yield batch


def rows(tokens):
    """ROWS rows, of which those behind `tokens` are what an allocator left."""
    made = torch.randn(ROWS, HEADS * DIM)
    made[tokens:] = float("nan")
    return made


def op_of(module, name, monkeypatch):
    return getattr(bodies.load_undecorated(f"sglang.srt.{module}", monkeypatch), name)


def poisoned(*shape):
    return torch.full(shape, float("nan"))


def check(output, given, tokens):
    found = output.view(ROWS, HEADS * DIM)
    torch.testing.assert_close(found[:tokens], given[:tokens] * 2)
    assert found[tokens:].eq(0).all()


@ops
@pytest.mark.parametrize("tokens", [5, 1, ROWS])
@pytest.mark.parametrize(
    "shape",
    [(-1, HEADS * DIM), (-1, HEADS, DIM), (1, -1, HEADS, DIM)],
    ids=["rows", "heads", "a batch of one, as Gemma3"],
)
def test_attention_leaves_zero(monkeypatch, shape, tokens):
    op = op_of("layers.radix_attention", "unified_attention_with_output", monkeypatch)
    given = rows(tokens)
    output = torch.full_like(given.view(shape), float("nan"))
    with served(tokens):
        op(given.view(shape), KEYS, KEYS, output, True, 0)
    check(output, given, tokens)


@ops
@pytest.mark.parametrize("tokens", [5, 1, ROWS])
@pytest.mark.parametrize("shapes", GATES.values(), ids=GATES)
def test_linear_attention_leaves_zero(monkeypatch, shapes, tokens):
    op = op_of("layers.radix_linear_attention", "unified_linear_attention_with_output", monkeypatch)
    given, output = rows(tokens), poisoned(1, ROWS, HEADS, DIM)
    a, b = (torch.zeros(ROWS, *shape[shape.index(-1) + 1 :]).view(shape) for shape in shapes)
    with served(tokens):
        op(given, a, b, output, 0)
    check(output, given, tokens)


@pytest.mark.parametrize("tokens", [5, 1, ROWS])
def test_deepseek_v4_leaves_zero(monkeypatch, tokens):
    op = op_of("models.deepseek_v4", "deepseek_v4_attention_with_output", monkeypatch)
    given, output = rows(tokens), poisoned(ROWS, HEADS, DIM)
    with served(tokens):
        op(given, torch.zeros(ROWS, DIM), output, 0, 4, torch.zeros(HEADS), False)
    check(output, given, tokens)


@ops
def test_attention_leaves_zero_where_dp_attention_had_padded_the_batch(monkeypatch):
    """Each rank's batch is padded to the longest one's tokens, so that all replay the same size."""
    op = op_of("layers.radix_attention", "unified_attention_with_output", monkeypatch)
    given, output = rows(3), poisoned(ROWS, HEADS * DIM)
    with served(3, handed=6):
        op(given, KEYS, KEYS, output, True, 0)
    check(output, given, 3)


@pytest.mark.revision(">=0.5.18,<0.5.23")
def test_attention_that_gives_its_lse_leaves_zero(monkeypatch):
    """What it returns has as many rows as its output, which is how the graph was captured."""
    op = op_of("layers.radix_attention", "unified_attention_with_output_and_lse", monkeypatch)
    given, output = rows(3), poisoned(ROWS, HEADS, DIM)
    with served(3, handed=6, backend=BackendWithLse):
        lse = op(given.view(ROWS, HEADS, DIM), KEYS, KEYS, output, True, 0)
    check(output, given, 3)
    assert lse.shape == (ROWS, HEADS) and lse[:3].eq(1).all() and lse[3:].eq(0).all()


def attend(monkeypatch, tokens, handed, backend, given, output, **more):
    """Attention's method, from 0.5.23 on."""
    scope = prefill_graph.prefill_graph_scope(full_graph=False, raw_num_tokens=handed)
    with served(tokens, backend=backend) as batch, scope:
        monkeypatch.setattr(radix_attention, "get_forward_batch", lambda: batch)
        layer = radix_attention.RadixAttention(HEADS, DIM, 1.0, num_kv_heads=HEADS, layer_id=0)
        layer._eager_attention(given, KEYS, KEYS, output, **more)


@pytest.mark.revision(">=0.5.23")
@pytest.mark.parametrize("tokens, handed", [(3, 6), (5, 5), (1, ROWS)])
def test_attention_as_a_method_leaves_zero(monkeypatch, tokens, handed):
    given, output = rows(tokens), poisoned(ROWS, HEADS * DIM)
    attend(monkeypatch, tokens, handed, Backend, given, output)
    check(output, given, tokens)


@pytest.mark.revision(">=0.5.23")
def test_sparse_attention_leaves_zero_in_both_outputs(monkeypatch):
    class Sparse(Backend):
        """Gives the indexer's output first."""

        def forward(self, q, *args, **kwargs):
            return q * 2, super().forward(q, *args, **kwargs)

    given = rows(3)
    output, index_output = poisoned(2, ROWS, HEADS * DIM)
    attend(monkeypatch, 3, 6, Sparse, given, output, idx_output=index_output)
    check(output, given, 3)
    check(index_output, given, 3)
