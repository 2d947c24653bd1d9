"""Whether the prefix cache may keep the state of a request that ends. The state is of all computed
tokens; its key may end before (--strip-thinking-cache, tokens cut behind a structured answer), and
whoever began like that key would go on from the state of other tokens."""

from typing import Any

# the length of a request's key: 0.5.14 and 0.5.15, 0.5.16 to 0.5.20, 0.5.21
LENGTHS_OF_KEYS = ("_cache_commit_len", "effective_kv_committed_len", "owned_kv_len")


def newer_than_key(request: Any) -> bool:
    """Whether the state that an ended request leaves, if any, is of more tokens than its key."""
    states = request if hasattr(request, "mamba_pool_idx") else request.kv  # kv from 0.5.19 on
    if states.mamba_pool_idx is None:
        return False
    key_length = next(getattr(request, of) for of in LENGTHS_OF_KEYS if hasattr(request, of))()
    if states.mamba_ping_pong_track_buffer is not None:  # the strategy extra_buffer
        return (states.mamba_last_track_seqlen or 0) > key_length
    computed = states if hasattr(states, "kv_committed_len") else request
    drafted = request.grammar is not None and request.spec_verify_ct > 0
    return drafted or key_length < computed.kv_committed_len
