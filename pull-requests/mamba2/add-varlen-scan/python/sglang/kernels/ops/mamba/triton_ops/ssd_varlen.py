"""Mamba2's chunked scan with chunks that begin with their sequence.

A chunk never holds two sequences, so there is no seq_idx and no pass for the last
chunk of a sequence. States stay in registers from a sequence's first chunk to its
last one, and are read from the state pool and written there in place. Launch grids
depend on the sizes of the chunk tables alone: a CUDA graph can replay them.
"""

import math
from typing import Optional

import msgspec
import torch
import triton
import triton.language as tl

SSD_CHUNK_SIZE = 128

_LOG2E = tl.constexpr(1.4426950408889634)
_STEP_BLOCK_HEADS = 8
# Programs of the state kernel: each holds ~100 kB of shared memory, so those of
# empty sequences would cost more than the loop over sequences does.
_STATE_PROGRAMS = 1024


class SSDTiles(msgspec.Struct, frozen=True):
    """Launch parameters of the two large kernels."""

    states: dict[str, int]
    scan: dict[str, int]


# (head_dim, d_state): measured on an H200 with 16-bit types.
_HOPPER_TILES = {
    (80, 128): SSDTiles(
        states=dict(BLOCK_P=128, BLOCK_N=64, num_warps=4, num_stages=2),
        scan=dict(BLOCK_HEADS=4, num_warps=4, num_stages=2),
    ),
    (64, 128): SSDTiles(
        states=dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=3),
        scan=dict(BLOCK_HEADS=2, num_warps=4, num_stages=2),
    ),
}
# With few heads, larger blocks of their states leave much of the GPU idle.
_FEW_HEADS = 32
_FEW_HEADS_STATES = dict(BLOCK_P=64, BLOCK_N=64, num_warps=4, num_stages=3)


def get_hopper_tiles(
    *, nheads: int, ngroups: int, headdim: int, dstate: int
) -> Optional[SSDTiles]:
    """Tiles of a layer's sizes on this rank, None where none were measured."""
    tiles = _HOPPER_TILES.get((headdim, dstate))
    if tiles is None:
        return None
    states = _FEW_HEADS_STATES if nheads <= _FEW_HEADS else tiles.states
    # The heads of one program share a group.
    block_heads = math.gcd(tiles.scan["BLOCK_HEADS"], nheads // ngroups)
    return SSDTiles(states=states, scan=tiles.scan | dict(BLOCK_HEADS=block_heads))


@triton.jit
def _chunk_rows(chunk_indices, cu_seqlens, chunk, CHUNK: tl.constexpr):
    """First row of a chunk and its row count, <= 0 for an unused table row."""
    seq = tl.load(chunk_indices + chunk * 2)
    start = tl.load(cu_seqlens + seq) + tl.load(chunk_indices + chunk * 2 + 1) * CHUNK
    return start, tl.minimum(tl.load(cu_seqlens + seq + 1) - start, CHUNK)


@triton.jit
def _ssd_steps_kernel(
    dt,  # [tokens, HEADS]
    dt_bias,
    a,
    steps,  # [chunks, HEADS, CHUNK] fp32: softplus(dt + dt_bias)
    decay,  # [chunks, HEADS, CHUNK] fp32: cumsum of steps * a, for exp2
    cu_seqlens,
    chunk_indices,
    stride_dt,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    chunk = tl.program_id(0)
    start, count = _chunk_rows(chunk_indices, cu_seqlens, chunk, CHUNK)
    if count <= 0:
        return
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    row = tl.arange(0, CHUNK)
    here = head < HEADS
    real = (row < count)[:, None] & here[None, :]
    rows = (start.to(tl.int64) + row)[:, None] * stride_dt
    step = tl.load(dt + rows + head[None, :], mask=real, other=0.0).to(tl.float32)
    step += tl.load(dt_bias + head, mask=here, other=0.0).to(tl.float32)[None, :]
    step = tl.where(step <= 20.0, tl.log(tl.exp(step) + 1.0), step)
    step = tl.where(real, step, 0.0)  # nothing decays behind the last row
    rate = tl.load(a + head, mask=here, other=0.0).to(tl.float32) * _LOG2E
    place = (chunk.to(tl.int64) * HEADS + head)[None, :] * CHUNK + row[:, None]
    tl.store(steps + place, step, mask=here[None, :])
    tl.store(decay + place, tl.cumsum(step * rate[None, :], axis=0), mask=here[None, :])


@triton.jit(noinline=True)  # inlined into the loop over sequences, registers spill
def _ssd_sequence_states(
    x,
    b,
    steps,
    decay,
    chunk_states,
    pool,
    cu_seqlens,
    chunk_offsets,
    cache_indices,
    has_initial_state,
    track_mode,
    track_chunk_idx,
    track_dst,
    seq,
    stride_x,
    stride_b,
    stride_slot,
    stride_head,
    stride_p,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
    TRACK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    begin = tl.load(cu_seqlens + seq)
    rows = tl.load(cu_seqlens + seq + 1) - begin
    head = tl.program_id(2)
    p0 = tl.program_id(0) // (N // BLOCK_N) * BLOCK_P
    n0 = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N
    p = tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, CHUNK)
    here = p0 + p < P
    pool += head.to(tl.int64) * stride_head + (p0 + p)[:, None] * stride_p
    pool += n0 + n[None, :]
    own = pool + tl.load(cache_indices + seq).to(tl.int64) * stride_slot
    warm = tl.load(has_initial_state + seq) != 0
    state = tl.load(own, mask=warm & here[:, None], other=0.0).to(tl.float32)
    x += begin.to(tl.int64) * stride_x + head * P + p0
    b += begin.to(tl.int64) * stride_b + (head // RATIO) * N + n0
    chunk = tl.load(chunk_offsets + seq).to(tl.int64)
    steps += (chunk * HEADS + head) * CHUNK
    decay += (chunk * HEADS + head) * CHUNK
    chunk_states += ((chunk * HEADS + head) * P + p0) * N + n0
    mode = 0
    tracked = -1
    also = own
    if TRACK:
        mode = tl.load(track_mode + seq)
        tracked = tl.load(track_chunk_idx + seq)
        also = pool + tl.load(track_dst + seq).to(tl.int64) * stride_slot
    for done in range(0, rows, CHUNK):
        kept = chunk_states + p[:, None] * N + n[None, :]
        tl.store(kept, state.to(chunk_states.dtype.element_ty), mask=here[:, None])
        if TRACK:
            now = (mode == 2) & (done == tracked * CHUNK)
            tl.store(also, state.to(pool.dtype.element_ty), mask=now & here[:, None])
        last = tl.load(decay + CHUNK - 1)
        weight = tl.exp2(last - tl.load(decay + k)) * tl.load(steps + k)
        real = k < rows - done
        xk = tl.load(
            x + k[None, :] * stride_x + p[:, None],
            mask=real[None, :] & here[:, None],
            other=0.0,
        )
        bk = tl.load(
            b + k[:, None] * stride_b + n[None, :], mask=real[:, None], other=0.0
        )
        state = tl.dot(xk, (bk * weight[:, None]).to(xk.dtype), state * tl.exp2(last))
        x += CHUNK * stride_x
        b += CHUNK * stride_b
        steps += HEADS * CHUNK
        decay += HEADS * CHUNK
        chunk_states += HEADS * P * N
    tl.store(own, state.to(pool.dtype.element_ty), mask=here[:, None])
    if TRACK:
        now = mode == 1
        tl.store(also, state.to(pool.dtype.element_ty), mask=now & here[:, None])


@triton.jit
def _ssd_states_kernel(
    x,  # [tokens, HEADS, P]
    b,  # [tokens, GROUPS, N]
    steps,
    decay,
    chunk_states,  # [chunks, HEADS, P, N] state before each chunk
    pool,  # [slots, HEADS, P, N]
    cu_seqlens,
    chunk_offsets,
    cache_indices,
    has_initial_state,
    track_mode,  # as in kda_prefill_track.py
    track_chunk_idx,
    track_dst,
    seqs,
    stride_x,
    stride_b,
    stride_slot,
    stride_head,
    stride_p,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
    TRACK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    for seq in range(tl.program_id(1), seqs, tl.num_programs(1)):
        if tl.load(cu_seqlens + seq + 1) > tl.load(cu_seqlens + seq):
            _ssd_sequence_states(
                x,
                b,
                steps,
                decay,
                chunk_states,
                pool,
                cu_seqlens,
                chunk_offsets,
                cache_indices,
                has_initial_state,
                track_mode,
                track_chunk_idx,
                track_dst,
                seq,
                stride_x,
                stride_b,
                stride_slot,
                stride_head,
                stride_p,
                HEADS,
                RATIO,
                P,
                N,
                CHUNK,
                TRACK,
                BLOCK_P,
                BLOCK_N,
            )


@triton.jit
def _ssd_output_block(
    x, kept, y, cm, wm, wk, scale, skip, m, k, p, real, past, stride_x, N: tl.constexpr
):
    xm = tl.load(x + m[:, None] * stride_x + p[None, :], mask=real[:, None], other=0.0)
    xk = tl.load(x + k[:, None] * stride_x + p[None, :], mask=past[:, None], other=0.0)
    acc = tl.dot(cm, tl.load(kept + p[None, :] * N)) * scale + xm.to(tl.float32) * skip
    acc = tl.dot(wk, xk, tl.dot(wm, xm, acc))
    tl.store(y + p[None, :], acc.to(y.dtype.element_ty), mask=real[:, None])


@triton.jit
def _ssd_scan_kernel(
    x,
    b,
    c,
    d,
    steps,
    decay,
    chunk_states,
    out,
    cu_seqlens,
    chunk_indices,
    stride_x,
    stride_b,
    stride_c,
    stride_out,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    PA: tl.constexpr,  # P as one or two powers of two, PA + PB
    PB: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Half a chunk for heads of one group, which share the products of c and b."""
    HALF: tl.constexpr = CHUNK // 2
    chunk = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2) * BLOCK_HEADS
    m0 = tl.program_id(0) * HALF
    start, count = _chunk_rows(chunk_indices, cu_seqlens, chunk, CHUNK)
    if m0 >= count:
        return
    row0 = start.to(tl.int64)
    k = tl.arange(0, HALF)
    m = m0 + k
    n = tl.arange(0, N)
    real = m < count
    past = (k < count) & (m0 > 0)  # rows of the half before this one
    group = (head // RATIO) * N
    b += row0 * stride_b + group + n[:, None]
    c += (row0 + m)[:, None] * stride_c + group + n[None, :]
    y = out + (row0 + m)[:, None] * stride_out
    cm = tl.load(c, mask=real[:, None], other=0.0)
    within = tl.dot(
        cm, tl.load(b + m[None, :] * stride_b, mask=real[None, :], other=0.0)
    )
    before = tl.dot(
        cm, tl.load(b + k[None, :] * stride_b, mask=past[None, :], other=0.0)
    )
    x += row0 * stride_x
    for h in range(head, head + BLOCK_HEADS):
        times = (chunk * HEADS + h) * CHUNK
        kept = chunk_states + (chunk * HEADS + h) * (P * N) + n[:, None]
        now = tl.load(decay + times + m)
        step = tl.load(steps + times + m)
        then = tl.load(decay + times + k)
        gone = tl.exp2(tl.minimum(now[:, None] - then[None, :], 0.0))
        gone *= tl.load(steps + times + k)[None, :]
        between = tl.exp2(now[:, None] - now[None, :]) * step[None, :]
        between = tl.where(k[None, :] <= k[:, None], between, 0.0)
        wm = (within * between).to(x.dtype.element_ty)
        wk = (before * gone).to(x.dtype.element_ty)
        scale = tl.exp2(now)[:, None]
        skip = tl.load(d + h).to(tl.float32)
        xh = x + h * P
        yh = y + h * P
        p = tl.arange(0, PA)
        _ssd_output_block(
            xh, kept, yh, cm, wm, wk, scale, skip, m, k, p, real, past, stride_x, N
        )
        if PB > 0:
            p = PA + tl.arange(0, PB)
            _ssd_output_block(
                xh, kept, yh, cm, wm, wk, scale, skip, m, k, p, real, past, stride_x, N
            )


def ssd_varlen_fwd(
    *,
    x: torch.Tensor,  # [tokens, nheads, headdim]
    dt: torch.Tensor,  # [tokens, nheads], before dt_bias and softplus
    A: torch.Tensor,
    B: torch.Tensor,  # [tokens, ngroups, dstate]
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    ssm_states: torch.Tensor,  # [slots, nheads, headdim, dstate]
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    chunk_indices: torch.Tensor,  # [chunks, 2] (seq, chunk)
    chunk_offsets: torch.Tensor,
    chunk_size: int,
    tiles: SSDTiles,
    track_mode: Optional[torch.Tensor] = None,
    track_chunk_idx: Optional[torch.Tensor] = None,
    track_dst: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Scan from each sequence's slot of ``ssm_states``, and leave its state there
    (and in ``track_dst``, as kda_prefill_track.py says). Rows past the sequences
    are zero in the output."""
    tokens, nheads, headdim = x.shape
    ngroups, dstate = B.shape[1:]
    chunks, seqs = chunk_indices.shape[0], cache_indices.shape[0]
    assert ssm_states.stride(-1) == 1 and dt.stride(-1) == 1
    steps, decay = x.new_empty(
        (2, chunks, nheads, chunk_size), dtype=torch.float32
    ).unbind()
    chunk_states = x.new_empty((chunks, nheads, headdim, dstate))
    out = x.new_zeros((tokens, nheads, headdim))
    sizes = dict(
        HEADS=nheads, RATIO=nheads // ngroups, P=headdim, N=dstate, CHUNK=chunk_size
    )

    _ssd_steps_kernel[chunks, triton.cdiv(nheads, _STEP_BLOCK_HEADS)](
        dt,
        dt_bias,
        A,
        steps,
        decay,
        cu_seqlens,
        chunk_indices,
        dt.stride(0),
        HEADS=nheads,
        CHUNK=chunk_size,
        BLOCK_HEADS=_STEP_BLOCK_HEADS,
    )

    blocks = triton.cdiv(headdim, tiles.states["BLOCK_P"]) * (
        dstate // tiles.states["BLOCK_N"]
    )
    together = min(seqs, triton.cdiv(_STATE_PROGRAMS, blocks * nheads))
    _ssd_states_kernel[blocks, together, nheads](
        x,
        B,
        steps,
        decay,
        chunk_states,
        ssm_states,
        cu_seqlens,
        chunk_offsets,
        cache_indices,
        has_initial_state,
        track_mode,
        track_chunk_idx,
        track_dst,
        seqs,
        x.stride(0),
        B.stride(0),
        ssm_states.stride(0),
        ssm_states.stride(1),
        ssm_states.stride(2),
        **sizes,
        TRACK=track_mode is not None,
        **tiles.states,
    )

    pa = 1 << (headdim.bit_length() - 1)
    _ssd_scan_kernel[2, chunks, nheads // tiles.scan["BLOCK_HEADS"]](
        x,
        B,
        C,
        D,
        steps,
        decay,
        chunk_states,
        out,
        cu_seqlens,
        chunk_indices,
        x.stride(0),
        B.stride(0),
        C.stride(0),
        out.stride(0),
        **sizes,
        PA=pa,
        PB=headdim - pa,
        **tiles.scan,
    )
    return out
