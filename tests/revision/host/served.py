"""The contexts around a forward, as the release's runners make them."""

import contextlib

from . import graph, late

with late.modules():
    from sglang.srt.model_executor import forward_context


def published(backend):
    """What ModelRunner makes around a forward: layers ask it for the backend from 0.5.13 on."""
    if not late.has(forward_context.__name__):
        return contextlib.nullcontext()
    return forward_context.forward_context(forward_context.ForwardContext(attn_backend=backend))


@contextlib.contextmanager
def served(batch, layer, backend):
    """The release's own contexts around a forward."""
    with published(backend), graph.forward_context(batch, [layer]):
        yield
