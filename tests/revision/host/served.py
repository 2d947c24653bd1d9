"""A forward as the release's runners make it: its batch, and the contexts around it."""

import contextlib

import torch

from . import graph


def batch_of(tokens, backend):
    batch = graph.prefill_batch(
        tokens, num_token_non_padded_cpu=tokens, out_cache_loc=torch.arange(tokens)
    )
    batch.attn_backend = backend  # up to 0.5.12; later releases ask their forward context
    return batch


def published(backend):
    """What ModelRunner makes around a forward: from 0.5.13 on layers ask it for the attention
    backend."""
    try:
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    except ImportError:
        return contextlib.nullcontext()
    return forward_context(ForwardContext(attn_backend=backend))


@contextlib.contextmanager
def served(batch, layer, backend):
    """The release's own contexts around a forward."""
    with published(backend), graph.forward_context(batch, [layer]):
        yield
