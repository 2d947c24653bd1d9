"""A forward as the release's runners make it: its batch, and the contexts around it."""

import contextlib

import torch

from . import graph, late

with late.modules():
    from sglang.srt.model_executor import forward_context


def batch_of(tokens, backend):
    batch = graph.prefill_batch(
        tokens, num_token_non_padded_cpu=tokens, out_cache_loc=torch.arange(tokens)
    )
    batch.attn_backend = backend  # up to 0.5.12; later releases ask their forward context
    return batch


def published(backend):
    """What ModelRunner makes around a forward: from 0.5.13 on layers ask it for the attention
    backend."""
    if not late.has(forward_context.__name__):
        return contextlib.nullcontext()
    return forward_context.forward_context(forward_context.ForwardContext(attn_backend=backend))


@contextlib.contextmanager
def served(batch, layer, backend):
    """The release's own contexts around a forward."""
    with published(backend), graph.forward_context(batch, [layer]):
        yield
