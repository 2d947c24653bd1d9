"""What split ops leave in the rows behind the batch: zero, whatever an allocator left there."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from host import bodies, graph, late, recorded, segments
from host import served as host_served

with late.modules():
    from sglang.srt.layers import radix_attention, radix_linear_attention
    from sglang.srt.model_executor.runner_utils import prefill_graph
    from sglang.srt.prefill_graph.breakable import runner
    from sglang.srt.prefill_graph.piecewise import mamba2

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.24")
OPS = pytest.mark.revision("<0.5.23")  # later attention is a method
REPLAYED = pytest.mark.revision(">=0.5.9,<0.5.14")
OF_RUNNER = pytest.mark.revision(">=0.5.14")  # the release's runner counts the batch's tokens
ATTENTION, LINEAR = "unified_attention_with_output", "unified_linear_attention_with_output"
HEADS, DIM, ROWS = 2, 4, 8
KEYS = torch.zeros(ROWS, HEADS, DIM)
WITH_HEADS = pytest.mark.revision(">=0.5.9")
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        pytest.param((-1, HEADS * DIM), id="rows"),
        pytest.param((-1, HEADS, DIM), id="heads", marks=WITH_HEADS),
        pytest.param((1, -1, HEADS, DIM), id="a batch of one, as Gemma3", marks=WITH_HEADS),
    ],
)
GATES = pytest.mark.parametrize(
    "gates",
    [[(ROWS, HEADS)] * 2, [(1, ROWS, HEADS, DIM), (1, ROWS, HEADS)]],
    ids=["as GDN", "as KDA"],
)
TOKENS = pytest.mark.parametrize(
    "tokens", [5, 1, ROWS, pytest.param(None, id="drafts", marks=pytest.mark.revision("<0.5.11"))]
)


class Backend:
    """Gives every row times two, of attention or of linear attention. calls: how many rows each
    had. exact: refuses more of them than the batch has tokens."""

    exact = True

    def __init__(self):
        self.calls = []

    def forward(
        self,
        q=None,
        k=None,
        v=None,
        layer=None,
        forward_batch=None,
        save_kv_cache=True,
        mixed_qkv=None,
        a=None,
        b=None,
        **kwargs,
    ):
        query = mixed_qkv if q is None else q
        count = query.numel() // (HEADS * DIM)
        self.calls.append(count)
        if self.exact:
            assert count == forward_batch.num_token_non_padded_cpu
        assert a is None or (a.numel() in (count * HEADS, count * HEADS * DIM))
        assert b is None or b.numel() == count * HEADS
        result = torch.empty_like(query).copy_(query * 2)
        return result.view(1, -1, HEADS, DIM) if q is None else result


class BackendOfAllRows(Backend):
    """Is given the rows behind the batch, too, as in the piecewise graph of these releases."""

    exact = False


class BackendWithLse(Backend):
    """Gives the logarithm of each row's sum of weights as well."""

    def forward(self, q, *args, **kwargs):
        return super().forward(q, *args, **kwargs), q.new_ones(len(q), HEADS)


def attention():
    return radix_attention.RadixAttention(HEADS, DIM, 1.0, num_kv_heads=HEADS, layer_id=0)


def linear_attention():
    return radix_linear_attention.RadixLinearAttention(0, HEADS, HEADS, HEADS, DIM, DIM, DIM)


@contextlib.contextmanager
def served(tokens, handed=None, backend=Backend):
    """The release's own contexts around a replay of ROWS rows for a batch of `tokens`; handed: how
    many it was padded to before the runner had it, where another rank has more. None tokens: drafts
    that are verified, which all are real."""
    batch = segments.batch_of(
        tokens or ROWS, out_cache_loc=torch.arange(ROWS), positions=torch.arange(ROWS)
    )
    if late.has(segments.tc_piecewise_cuda_graph.__name__):
        context = segments.forward_context_of(batch, [attention()], ROWS, handed or tokens)
        with host_served.published(backend()), context:
            yield batch
    else:
        batch.attn_backend, batch.extend_num_tokens = BackendOfAllRows(), tokens
        with host_served.served(batch, attention(), batch.attn_backend):
            yield batch


def rows(tokens):
    """ROWS rows, of which those behind `tokens` are what an allocator left."""
    made = torch.randn(ROWS, HEADS * DIM)
    if tokens is not None:
        made[tokens:] = float("nan")
    return made


def op_of(module, name, monkeypatch):
    return getattr(bodies.load_undecorated(f"sglang.srt.{module}", monkeypatch), name)


def poisoned(*shape):
    return torch.full(shape, float("nan"))


def check(output, given, tokens):
    found, tokens = output.view(ROWS, HEADS * DIM), ROWS if tokens is None else tokens
    torch.testing.assert_close(found[:tokens], given[:tokens] * 2)
    assert found[tokens:].eq(0).all()


@pytest.mark.patch("piecewise/zero-rows-behind-batch", "piecewise/zero-padded-attention-rows")
@OPS
@TOKENS
@SHAPES
def test_attention_leaves_zero(monkeypatch, shape, tokens):
    """A NaN in them reached real rows in the next attention layer: the server answered token 0."""
    op = op_of("layers.radix_attention", ATTENTION, monkeypatch)
    given = rows(tokens)
    output = torch.full_like(given.view(shape), float("nan"))
    with served(tokens):
        op(given.view(shape), KEYS, KEYS, output, True, 0)
    check(output, given, tokens)


@pytest.mark.patch("piecewise/zero-rows-behind-batch", "piecewise/zero-padded-attention-rows")
@OPS
@WITH_HEADS
@TOKENS
@GATES
def test_linear_attention_leaves_zero(monkeypatch, gates, tokens):
    """Kimi-Linear's rows come from an allocation that nothing fills."""
    op = op_of("layers.radix_linear_attention", LINEAR, monkeypatch)
    given, output = rows(tokens), poisoned(1, ROWS, HEADS, DIM)
    with served(tokens):
        op(given, *map(torch.zeros, gates), output, 0)
    check(output, given, tokens)


@OF_RUNNER
@pytest.mark.parametrize("tokens, handed", [(5, 5), (1, 1), (ROWS, ROWS), (3, 6)])
def test_deepseek_v4_leaves_zero(monkeypatch, tokens, handed):
    op = op_of("models.deepseek_v4", "deepseek_v4_attention_with_output", monkeypatch)
    given, output = rows(tokens), poisoned(ROWS, HEADS, DIM)
    with served(tokens, handed):
        op(given, torch.zeros(ROWS, DIM), output, 0, 4, torch.zeros(HEADS), False)
    check(output, given, tokens)


WITH_LSE = pytest.mark.revision(">=0.5.18")


@OF_RUNNER
@OPS
@pytest.mark.parametrize(
    "suffix, backend", [("", Backend), pytest.param("_and_lse", BackendWithLse, marks=WITH_LSE)]
)
def test_attention_leaves_zero_where_dp_attention_had_padded_the_batch(
    monkeypatch, suffix, backend
):
    """Each rank's batch is padded to the longest one's tokens, so that all replay the same size.
    The logarithm of weights has as many rows as the output, which is how the graph was captured."""
    op = op_of("layers.radix_attention", ATTENTION + suffix, monkeypatch)
    given, output = rows(3), poisoned(ROWS, HEADS, DIM)
    with served(3, handed=6, backend=backend):
        lse = op(given.view(ROWS, HEADS, DIM), KEYS, KEYS, output, True, 0)
    check(output, given, 3)
    if suffix:
        assert lse.shape == (ROWS, HEADS) and lse[:3].eq(1).all() and lse[3:].eq(0).all()


MIXER = "nemotron_mamba2_with_output"
PREFILL = dict(num_decodes=0, is_target_verify=False, draft_token_num=1)
BEFORE_OWN_OP = pytest.mark.revision("<0.5.10")  # the op is this package's


@pytest.mark.revision("<0.5.11")
@pytest.mark.parametrize(
    "counts, tokens",
    [
        pytest.param(PREFILL | dict(num_prefill_tokens=5), 5, id="prefill"),
        pytest.param(PREFILL | dict(num_prefill_tokens=ROWS), ROWS, id="no padding"),
        pytest.param(PREFILL | dict(num_prefill_tokens=3, num_decodes=2), 5, id="mixed"),
        pytest.param(
            dict(num_prefill_tokens=0, num_decodes=2, is_target_verify=True, draft_token_num=3),
            6,
            id="verify drafts",
        ),
        pytest.param(
            dict(num_prefill_tokens=4, num_decodes=2), 6, id="as in 0.5.5", marks=BEFORE_OWN_OP
        ),
        pytest.param(
            dict(num_prefill_tokens=0, num_decodes=0), 0, id="no tokens", marks=BEFORE_OWN_OP
        ),
    ],
)
def test_mamba2_leaves_zero(monkeypatch, counts, tokens):
    """MambaMixer2 asserts that it is given as many rows as the metadata counts."""
    calls = []

    def mix(*, mixer, layer_id, hidden_states, output, use_triton_causal_conv):
        calls.append((mixer, layer_id, use_triton_causal_conv, len(hidden_states)))
        output.copy_(hidden_states * 2)

    def mix_as_layer(rows, _):
        output = torch.empty_like(rows)
        words = dict(mixer="the mixer", layer_id=0, use_triton_causal_conv=True)
        mix(hidden_states=rows, output=output, **words)
        return output

    release = bodies.load_undecorated("sglang.srt.models.nemotron_h", monkeypatch)
    op = getattr(release, MIXER, None) or mamba2.nemotron_mamba2_with_output
    linear = SimpleNamespace(forward_metadata=SimpleNamespace(**counts), forward=mix)
    batch = SimpleNamespace(attn_backend=SimpleNamespace(linear_attn_backend=linear))
    layer = SimpleNamespace(mixer="the mixer", layer_id=0, _forward_mamba=mix_as_layer)
    given, output = rows(tokens), poisoned(ROWS, HEADS * DIM)
    with graph.forward_context(batch, [layer]):
        op(given, output, 0)
    assert calls == ([("the mixer", 0, True, tokens)] if tokens else [])
    check(output, given, tokens)


@REPLAYED
@GATES
def test_linear_attention_runs_on_the_batch_of_a_replay(monkeypatch, gates):
    """Captured, it would go on with the capture's one request: its state slot and length."""

    def batch_of(tokens):
        batch = segments.batch_of(tokens)
        batch.attn_backend = backend  # up to 0.5.12; later releases ask their forward context
        return batch

    given, (a, b) = torch.zeros(ROWS, HEADS * DIM), map(torch.zeros, gates)
    backend, own, layer = Backend(), runner.primitive(), linear_attention()
    body = op_of("layers.radix_linear_attention", LINEAR, monkeypatch)
    with recorded.recording(monkeypatch, **{LINEAR: body}):
        made, placeholder = own.graph(), batch_of(ROWS)
        with (
            own.capturing(),
            host_served.served(placeholder, layer, backend),
            own.capture(made, (0, 1), None),
        ):
            output = layer(placeholder, given * 1, a * 1, b * 1) + 1
        for tokens in (5, ROWS, 1):
            given.copy_(rows(tokens))
            batch, backend.calls = batch_of(tokens), []
            with own.replaying(), host_served.served(batch, layer, backend):
                made.replay()
            assert backend.calls == [tokens]
            check(output - 1, given, tokens)


def attend(monkeypatch, tokens, handed, backend, given, output, **more):
    """Attention's method, from 0.5.23 on."""
    scope = prefill_graph.prefill_graph_scope(full_graph=False, raw_num_tokens=handed)
    with served(tokens, backend=backend) as batch, scope:
        monkeypatch.setattr(radix_attention, "get_forward_batch", lambda: batch)
        attention()._eager_attention(given, KEYS, KEYS, output, **more)


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
