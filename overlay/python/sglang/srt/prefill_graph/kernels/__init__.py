"""Triton kernels for prefill, and the tiles that the releases' own kernels are launched with.
Modules, low to high:

    tiles             tiles for Mamba2's prefill kernels
    gated_delta       one launch setting for kernels of a gated delta rule's prefill
    expert_tiles      tables of tiles for routed experts that a release lacks
    ssd               Mamba2's scan of a prefill in three kernels
    mamba2_scan       which scan a prefill runs
    convolution       Mamba2's causal convolution, for launches that do not depend on the batch
    delta_states      tables and states of a gated delta rule's captured prefill
    relu2             the squared ReLU in one pass
    tracked_states    the Mamba2 states that the prefix cache keeps of a prefill
    lightning_states  the same of lightning attention
    rope_lanes        which of a token's positions turns which lane of a rotary embedding

A patch calls:

    expert_tiles.report_default, expert_tiles.table, gated_delta.settle, lightning_states.aim,
    lightning_states.keep, lightning_states.scan, mamba2_scan.choose, relu2.relu2, rope_lanes.of,
    rope_lanes.position_row, tiles.fix, tracked_states.aim, tracked_states.ask_once,
    tracked_states.delta_chunks, tracked_states.follow.
"""
