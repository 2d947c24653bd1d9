"""The release's own prefix cache of recurrent states, whose arguments differ by release."""

from inspect import signature

import torch

from . import late

with late.modules():
    from sglang.srt.mem_cache import allocator, base_prefix_cache, cache_init_params


def build(kind, pool):
    """A cache of the release's class `kind` over `pool`, with room for 64 tokens."""
    given = dict(
        disable=False,
        req_to_token_pool=pool,
        page_size=1,
        token_to_kv_pool_allocator=allocator.TokenToKVPoolAllocator(
            64, torch.float16, "cpu", None, False
        ),
    )
    if "params" in signature(kind.__init__).parameters:
        given = dict(params=cache_init_params.CacheInitParams(**given))
    return kind(**given)


def call(cache, name, params, **given):
    """The method `name`; `params` is the class of its argument where it has one alone."""
    method = getattr(cache, name)
    if "params" not in signature(method).parameters:
        return method(**given)
    found = method(getattr(base_prefix_cache, params)(**given))
    return (found.prefix_len, found.mamba_exist) if name == "insert" else found
