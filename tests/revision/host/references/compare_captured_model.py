"""A small Qwen3.5 whose gated delta nets are captured, through the runner, with interpreted kernels
in the recorded graph."""

import contextlib
import os
from types import SimpleNamespace

import pytest
import test_breakable_runner as parts
import torch
from triton.runtime import interpreter

from host import hybrids, models, process, recorded, segments
from host.references import compare_tracked_gdn

TYPE, SLOTS = compare_tracked_gdn.TYPE, 8


class Launch:
    """A launch of a kernel, as an op that a recorded graph runs again."""

    overloadpacket = SimpleNamespace(__name__="launch")

    def __init__(self, run):
        self.run = run

    def __call__(self, *args, **kwargs):
        self.run(*args, **kwargs)


@contextlib.contextmanager
def launches_recorded():
    """Note each launch of a capture in its graph; what the interpreter does of its own is no part
    of it."""
    own = interpreter.GridExecutor.__call__

    def call(self, *args, **kwargs):
        recorder = recorded.Graph.recorder
        graph, recorder.target = recorder.target, None
        own(self, *args, **kwargs)
        recorder.target = graph
        if graph is not None:
            graph.ops.append((Launch(lambda *a, **k: own(self, *a, **k)), args, kwargs, None))

    interpreter.GridExecutor.__call__ = call
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = own


@contextlib.contextmanager
def recording():
    """A MonkeyPatch. Until the context ends captures record ops and launches of kernels, without
    gradients."""
    with pytest.MonkeyPatch.context() as patch, segments.recording(patch):
        with launches_recorded(), torch.no_grad():
            yield patch


class Hybrid:
    """Attention over each request's own tokens, and the release's backend of gated delta nets."""

    def __init__(self, linear):
        self.full_attn_backend, self.linear_attn_backend = parts.CausalAttention(), linear

    def init_forward_metadata(self, batch):
        self.full_attn_backend.init_forward_metadata(batch)
        self.linear_attn_backend.init_forward_metadata(batch)

    def forward(
        self, *args, layer=None, forward_batch=None, mixed_qkv=None, a=None, b=None, **more
    ):
        if mixed_qkv is None:
            given = {} if layer is None else dict(layer=layer, forward_batch=forward_batch)
            return self.full_attn_backend.forward(*args, **given, **more)
        return self.linear_attn_backend.forward_extend(
            layer=layer, forward_batch=forward_batch, mixed_qkv=mixed_qkv, a=a, b=b
        )


def pool_of(config, layers):
    """Random states of each layer, in every slot."""
    heads = config.linear_num_value_heads
    channels = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    channels += heads * config.linear_value_head_dim
    state = heads, config.linear_value_head_dim, config.linear_key_head_dim
    torch.manual_seed(3)
    return {
        layer: SimpleNamespace(
            conv=[torch.randn(SLOTS, channels, 3).to(TYPE)],
            temporal=0.1 * torch.randn(SLOTS, *state),
        )
        for layer in layers
    }


def backend(pool):
    """The release's backend of gated delta nets on `pool`, whose slot i + 1 is request i's."""
    from sglang.srt.layers import radix_linear_attention

    before = dict(vars(radix_linear_attention))
    first = next(iter(pool.values()))
    made = compare_tracked_gdn.backend(SimpleNamespace(), (first.conv[0], first.temporal))
    vars(radix_linear_attention).update(before)  # in a graph, layers do look for its batch
    made.kernel_dispatcher = SimpleNamespace(
        extend=made.kernel_dispatcher.extend,
        extend_kernel=made.kernel_dispatcher,
        extend_uses_state_checkpoints=False,  # asked from 0.5.17 on
    )
    made.req_to_token_pool = SimpleNamespace(
        mamba2_layer_cache=lambda layer: pool[layer],
        get_mamba_indices=lambda requests: (requests + 1).to(torch.int32),
    )
    return made


def batch_of(lengths, prefixes):
    made = parts.batch_of(lengths, mrope_positions=parts.axes_of(lengths))
    made.extend_prefix_lens, made.extend_prefix_lens_cpu = torch.tensor(prefixes), list(prefixes)
    return made


def built(kind, **changes):
    """A model on the CPU whose vectors are set: those that its classes leave to a checkpoint, as
    the decay of a net and the weight of its norm, are 1, and not what memory held."""
    torch.use_deterministic_algorithms(True)  # fresh memory is NaN
    try:
        model = models.build(kind, device="cpu", dtype=TYPE, **changes)
    finally:
        torch.use_deterministic_algorithms(False)
    for parameter in model.parameters():
        parameter.data[parameter.isnan()] = 1
    return model


def runner_of(patch, sizes):
    """The model's runner with its graph captured, and the pool of states."""
    from sglang.srt.prefill_graph.breakable import runner as breakable
    from sglang.srt.prefill_graph.compat import capture

    hybrids.on_cpu(patch)
    patch.setattr(capture, "capture_context", lambda runner: contextlib.nullcontext(None))
    patch.setattr(capture, "graph_pool", lambda runner: (0, 1))
    model = built("qwen3_5")
    bare = parts.model_runner(model)
    nets = [i for i, one in enumerate(bare.attention_layers) if hasattr(one, "conv_weights")]
    pool = pool_of(models.config_of("qwen3_5").text_config, nets)
    linear = backend(pool)
    args = process.default_server_args(
        piecewise_cuda_graph_tokens=sizes, enable_breakable_cuda_graph=True
    )
    made = parts.model_runner(
        model,
        attn_backend=Hybrid(linear),
        req_to_token_pool=linear.req_to_token_pool,
        dtype=TYPE,
        server_args=args,
        is_multimodal=True,
        model_config=SimpleNamespace(context_len=4096, num_hidden_layers=8, hidden_size=128),
    )
    return made, breakable.make_runner(made), pool


def compare(batches, sizes):
    """Each batch, (lengths, prefixes), replayed and eagerly, from the same states, one after the
    other.

    Returns the largest differences of `logits` and of `states`, how large logits are, how many
    `nets` there are, `ran`: how many of them ran eagerly in a replay, and `others`: how many slots
    of no request have changed.
    """
    os.environ["SGLANG_PREFILL_GRAPH_STATES"] = "all"
    found = dict(logits=0.0, states=0.0, size=0.0, ran=0, others=0)
    with recording() as patch:
        runner, graph, pool = runner_of(patch, sizes)
        linear, forward = runner.attn_backend.linear_attn_backend, None
        forward, calls = linear.forward_extend, []
        linear.forward_extend = lambda **given: calls.append(1) or forward(**given)
        for lengths, prefixes in batches:
            begin = {
                layer: (kept.conv[0].clone(), kept.temporal.clone()) for layer, kept in pool.items()
            }
            calls.clear()
            logits = parts.replayed(runner, graph, batch_of(lengths, prefixes)).clone()
            found["ran"] += len(calls)
            after = {
                layer: (kept.conv[0].clone(), kept.temporal.clone()) for layer, kept in pool.items()
            }
            own = slice(1, len(lengths) + 1)
            for layer, (conv, state) in begin.items():
                pool[layer].conv[0].copy_(conv), pool[layer].temporal.copy_(state)
                pool[layer].temporal[own] *= (torch.tensor(prefixes) > 0)[:, None, None, None]
            wanted = parts.eager(runner, batch_of(lengths, prefixes))
            found["logits"] = max(found["logits"], (logits - wanted).abs().max().item())
            found["size"] = max(found["size"], wanted.abs().max().item())
            for layer, (conv, state) in after.items():
                for new, old, first in (
                    (conv, pool[layer].conv[0], begin[layer][0]),
                    (state, pool[layer].temporal, begin[layer][1]),
                ):
                    found["states"] = max(found["states"], (new[own] - old[own]).abs().max().item())
                    spare = [slot for slot in range(SLOTS) if not 1 <= slot <= len(lengths)]
                    found["others"] += sum(not torch.equal(new[i], first[i]) for i in spare)
    return found | dict(nets=len(pool))
