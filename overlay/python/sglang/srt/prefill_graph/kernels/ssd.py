"""Mamba2's scan of a prefill in three kernels (Dao and Gu, Transformers are SSMs, 2024, section 6).
Each request is cut into chunks of its own, so that it has the same bits whoever else is in the
batch. States stay in registers from its first chunk to its last, and are read from the pool and
written there, those that the prefix cache asked for too.

    steps    dt' = softplus(dt + bias), and the running sum of dt' a over each chunk
    states   s <- exp(sum of dt' a) s + sum over the chunk's tokens of decay dt' x b
    scan     y = decay c s + sum over the chunk's earlier tokens of (c b) decay dt' x + d x

For a layer with H heads of size P, G groups (each shared by H / G heads) and state size N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
import torch
import triton
import triton.language as tl

PROGRAMS = 1024  # of the states' kernel: they fill any GPU, and starting more costs microseconds
STEP_HEADS = 8  # heads of one program of the first kernel
LARGEST_BLOCK = 128 * 128  # values of a state in the scan: more exceed a program's memory on sm_86
ALIGN = 4  # int32 in 16 bytes: for an address that moves off this Triton compiles kernels again
LOG2E = tl.constexpr(1.4426950408889634)  # sums are kept for exp2, which the GPU has


@dataclass(frozen=True)
class Plan:
    """How a batch is cut into chunks, on the device. All int32.

    cu: (requests + 1,), the first row of each request. first: (requests + 1,), its first chunk.
    start, size: (chunks,), the first row of each chunk and how many rows it has. Minus that many:
    the rows are behind the batch, and the scan writes zeros there. 0: there is no such chunk.
    track_rows: (requests,), behind how many of its rows a request's state is also kept; 0: none is.
    track_slots: (requests,), where that state goes. Both None where no request asks for it.
    """

    chunk: int
    requests: int
    chunks: int
    cu: torch.Tensor
    first: torch.Tensor
    start: torch.Tensor
    size: torch.Tensor
    track_rows: torch.Tensor | None = None
    track_slots: torch.Tensor | None = None


class Columns(NamedTuple):
    """How a batch is cut into chunks, on the host: the fields of Plan, and owner: (chunks,), the
    request of each chunk."""

    cu: numpy.ndarray
    first: numpy.ndarray
    start: numpy.ndarray
    size: numpy.ndarray
    owner: numpy.ndarray


def cut(lengths: Sequence[int], chunk: int, tokens: int, requests: int, room: int) -> Columns:
    """The columns of a batch, padded to `tokens` rows, `requests` places and `room` chunks.

    A place without a request has no rows and no chunks. Chunks behind the last real one are those
    of the rows behind the batch, with minus their rows as size, and then chunks of no rows.
    """
    counts = numpy.zeros(requests, numpy.int32)
    counts[: len(lengths)] = lengths
    chunks = -(-counts // chunk)
    cu = numpy.concatenate(([0], counts.cumsum()))
    first = numpy.concatenate(([0], chunks.cumsum()))
    real = first[-1]
    start, size, owner = numpy.zeros((3, room), numpy.int32)
    owner[:real] = numpy.repeat(numpy.arange(requests), chunks)
    within = (numpy.arange(real) - first[owner[:real]]) * chunk
    start[:real] = cu[owner[:real]] + within
    size[:real] = numpy.minimum(chunk, counts[owner[:real]] - within)
    behind = numpy.arange(cu[-1], tokens, chunk)
    start[real : real + len(behind)] = behind
    size[real : real + len(behind)] = -numpy.minimum(chunk, tokens - behind)
    return Columns(cu, first, start, size, owner)


def plan(
    lengths: Sequence[int],
    chunk: int,
    device: torch.device,
    tracked: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Plan:
    """The plan of a batch, with one copy to the device and no synchronisation. lengths: rows of
    each request. tracked: (rows, slots) of the states to keep, as in Plan; rows are a multiple of
    `chunk`, or all rows of the request, or 0."""
    chunks = sum(-(-length // chunk) for length in lengths)
    columns = cut(lengths, chunk, sum(lengths), len(lengths), chunks)[:4]
    host, places = packed([*columns, *map(numpy.asarray, tracked or ())], device)
    there = host.to(device, non_blocking=True)
    return Plan(chunk, len(lengths), chunks, *(there[place] for place in places))


def packed(
    columns: Sequence[numpy.ndarray], device: torch.device
) -> tuple[torch.Tensor, list[slice]]:
    """One int32 tensor on the host for a copy to the device, and each column's place in it, at an
    address that 16 bytes divide. Pinned, and new each time: an earlier copy may be under way."""
    begins = numpy.cumsum([0, *(-(-len(column) // ALIGN) * ALIGN for column in columns)]).tolist()
    pinned = device.type == "cuda"
    host = torch.zeros(max(begins[-1], 1), dtype=torch.int32, pin_memory=pinned)
    places = [slice(begin, begin + len(column)) for begin, column in zip(begins, columns)]
    for place, column in zip(places, columns):
        host.numpy()[place] = column
    return host, places


def split_size(size: int) -> tuple[int, int] | None:
    """`size` as one or two powers of two of at least 16, the larger one first, as Triton's blocks
    have them; None if it is not."""
    high = 1 << (size.bit_length() - 1)
    rest = size - high
    if size < 16 or (rest and (rest < 16 or rest & (rest - 1))):
        return None
    return high, rest


@triton.jit
def _steps_kernel(
    dt,
    bias,
    a,
    steps,
    decay,
    start,
    size,
    stride_dt,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    chunk = tl.program_id(0)
    count = tl.load(size + chunk)
    if count <= 0:
        return
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    row = tl.arange(0, CHUNK)
    row0 = tl.load(start + chunk).to(tl.int64)
    here = head < HEADS
    real = (row < count)[:, None] & here[None, :]
    step = tl.load(dt + (row0 + row)[:, None] * stride_dt + head[None, :], mask=real, other=0.0)
    step = step.to(tl.float32) + tl.load(bias + head, mask=here, other=0.0).to(tl.float32)[None, :]
    step = tl.where(step <= 20.0, tl.log(tl.exp(step) + 1.0), step)
    step = tl.where(real, step, 0.0)  # behind a chunk's last row nothing decays any more
    rate = tl.load(a + head, mask=here, other=0.0).to(tl.float32) * LOG2E
    place = (chunk.to(tl.int64) * HEADS + head)[None, :] * CHUNK + row[:, None]
    tl.store(steps + place, step, mask=here[None, :])
    tl.store(decay + place, tl.cumsum(step * rate[None, :], axis=0), mask=here[None, :])


@triton.jit
def _through(
    state,
    x,
    b,
    steps,
    decay,
    before,
    chunk,
    begin,
    end,
    rows,
    here,
    stride_x,
    stride_b,
    HEADS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Take a block of a head's state through the chunks between two rows of a request."""
    p = tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, CHUNK)
    for done in range(begin, end, CHUNK):
        kept = before + chunk * (HEADS * P * N) + p[:, None] * N + n[None, :]
        tl.store(kept, state.to(before.dtype.element_ty), mask=here[:, None])
        times = chunk * (HEADS * CHUNK)
        last = tl.load(decay + times + CHUNK - 1)
        weight = tl.exp2(last - tl.load(decay + times + k)) * tl.load(steps + times + k)
        real = k < rows - done
        xk = tl.load(
            x + k[None, :] * stride_x + p[:, None], mask=real[None, :] & here[:, None], other=0.0
        )
        bk = tl.load(b + k[:, None] * stride_b + n[None, :], mask=real[:, None], other=0.0)
        state = tl.dot(xk, (bk * weight[:, None]).to(xk.dtype), state * tl.exp2(last))
        x += CHUNK * stride_x
        b += CHUNK * stride_b
        chunk += 1
    return state, x, b, chunk


@triton.jit(noinline=True)  # inlined into the loop over requests, its registers would spill
def _request_states(
    x,
    b,
    steps,
    decay,
    before,
    pool,
    cu,
    first,
    slots,
    warm,
    track_rows,
    track_slots,
    request,
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
    begin = tl.load(cu + request)
    rows = tl.load(cu + request + 1) - begin
    head = tl.program_id(2)
    p0 = tl.program_id(0) // (N // BLOCK_N) * BLOCK_P
    n0 = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N
    p = p0 + tl.arange(0, BLOCK_P)
    here = p < P
    chunk = tl.load(first + request).to(tl.int64)
    pool += (
        head.to(tl.int64) * stride_head
        + p[:, None] * stride_p
        + n0
        + tl.arange(0, BLOCK_N)[None, :]
    )
    own = pool + tl.load(slots + request).to(tl.int64) * stride_slot
    was = tl.load(warm + request) != 0
    state = tl.load(own, mask=was & here[:, None], other=0.0).to(tl.float32)
    x += begin.to(tl.int64) * stride_x + head * P + p0
    b += begin.to(tl.int64) * stride_b + (head // RATIO) * N + n0
    steps += head * CHUNK
    decay += head * CHUNK
    before += (head * P + p0) * N + n0
    done = 0
    for part in tl.static_range(TRACK + 1):
        end = tl.load(track_rows + request) if part < TRACK else rows
        state, x, b, chunk = _through(
            state,
            x,
            b,
            steps,
            decay,
            before,
            chunk,
            done,
            end,
            rows,
            here,
            stride_x,
            stride_b,
            HEADS,
            P,
            N,
            CHUNK,
            BLOCK_P,
            BLOCK_N,
        )
        if part < TRACK:
            also = pool + tl.load(track_slots + request).to(tl.int64) * stride_slot
            tl.store(also, state.to(also.dtype.element_ty), mask=(end > 0) & here[:, None])
        done = end
    tl.store(own, state.to(own.dtype.element_ty), mask=here[:, None])


@triton.jit(do_not_specialize=["requests"])
def _states_kernel(
    x,
    b,
    steps,
    decay,
    before,
    pool,
    cu,
    first,
    slots,
    warm,
    track_rows,
    track_slots,
    requests,
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
    """A block of a head's states, of every so many requests."""
    for request in range(tl.program_id(1), requests, tl.num_programs(1)):
        if tl.load(cu + request + 1) > tl.load(cu + request):
            _request_states(
                x,
                b,
                steps,
                decay,
                before,
                pool,
                cu,
                first,
                slots,
                warm,
                track_rows,
                track_slots,
                request,
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
def _scan_kernel(
    x,
    b,
    c,
    d,
    steps,
    decay,
    before,
    out,
    start,
    size,
    stride_x,
    stride_b,
    stride_c,
    stride_out,
    HEADS: tl.constexpr,
    RATIO: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    PA: tl.constexpr,
    PB: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """One half of a chunk, for some heads of one group: they share the products of c and b."""
    HALF: tl.constexpr = CHUNK // 2
    chunk = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2) * BLOCK_HEADS
    m0 = tl.program_id(0) * HALF
    count = tl.load(size + chunk)
    if m0 >= tl.abs(count):
        return
    row0 = tl.load(start + chunk).to(tl.int64)
    k = tl.arange(0, HALF)
    m = m0 + k
    n = tl.arange(0, N)
    pa = tl.arange(0, PA)
    pb = PA + tl.arange(0, PB if PB > 0 else 16)
    y = out + (row0 + m)[:, None] * stride_out
    if count < 0:
        behind = (m < -count)[:, None]
        for h in range(head, head + BLOCK_HEADS):
            none = tl.zeros((HALF, PA), out.dtype.element_ty)
            tl.store(y + h * P + pa[None, :], none, mask=behind)
            if PB > 0:
                none = tl.zeros((HALF, PB), out.dtype.element_ty)
                tl.store(y + h * P + pb[None, :], none, mask=behind)
        return
    real = m < count
    past = (k < count) & (m0 > 0)  # the half before this one: all of its rows are earlier ones
    group = (head // RATIO) * N
    b += row0 * stride_b + group + n[:, None]
    cm = tl.load(
        c + (row0 + m)[:, None] * stride_c + group + n[None, :], mask=real[:, None], other=0.0
    )
    own = tl.dot(cm, tl.load(b + m[None, :] * stride_b, mask=real[None, :], other=0.0))
    older = tl.dot(cm, tl.load(b + k[None, :] * stride_b, mask=past[None, :], other=0.0))
    x += row0 * stride_x
    for h in range(head, head + BLOCK_HEADS):
        times = (chunk * HEADS + h) * CHUNK
        kept = before + (chunk * HEADS + h) * (P * N) + n[:, None]
        now = tl.load(decay + times + m)
        step = tl.load(steps + times + m)
        then = tl.load(decay + times + k)
        gone = (
            tl.exp2(tl.minimum(now[:, None] - then[None, :], 0.0))
            * tl.load(steps + times + k)[None, :]
        )
        between = tl.where(
            k[None, :] <= k[:, None], tl.exp2(now[:, None] - now[None, :]) * step[None, :], 0.0
        )
        wm = (own * between).to(x.dtype.element_ty)
        wk = (older * gone).to(x.dtype.element_ty)
        scale = tl.exp2(now)[:, None]
        skip = tl.load(d + h).to(tl.float32)
        xm = tl.load(x + m[:, None] * stride_x + h * P + pa[None, :], mask=real[:, None], other=0.0)
        xk = tl.load(x + k[:, None] * stride_x + h * P + pa[None, :], mask=past[:, None], other=0.0)
        ya = tl.dot(cm, tl.load(kept + pa[None, :] * N)) * scale + xm.to(tl.float32) * skip
        ya = tl.dot(wk, xk, tl.dot(wm, xm, ya))
        tl.store(y + h * P + pa[None, :], ya.to(out.dtype.element_ty), mask=real[:, None])
        if PB > 0:
            xm = tl.load(
                x + m[:, None] * stride_x + h * P + pb[None, :], mask=real[:, None], other=0.0
            )
            xk = tl.load(
                x + k[:, None] * stride_x + h * P + pb[None, :], mask=past[:, None], other=0.0
            )
            yb = tl.dot(cm, tl.load(kept + pb[None, :] * N)) * scale + xm.to(tl.float32) * skip
            yb = tl.dot(wk, xk, tl.dot(wm, xm, yb))
            tl.store(y + h * P + pb[None, :], yb.to(out.dtype.element_ty), mask=real[:, None])


@dataclass(frozen=True)
class Shape:
    """A layer's sizes on this rank. blocks: of its head, as split_size() gives them, or in
    halves."""

    heads: int
    groups: int
    size: int
    d_state: int
    chunk: int
    blocks: tuple[int, int]

    @classmethod
    def of(cls, heads: int, groups: int, size: int, d_state: int, chunk: int) -> Shape | None:
        """None where the kernels have no blocks for these sizes."""
        blocks = split_size(size)
        if not blocks or heads % groups or any(n < 16 or n & (n - 1) for n in (d_state, chunk)):
            return None
        if not blocks[1] and size * d_state > LARGEST_BLOCK:
            blocks = size // 2, size // 2
        return cls(heads, groups, size, d_state, chunk, blocks)

    def constants(self) -> dict[str, int]:
        """What the two large kernels are compiled for."""
        sizes = {"HEADS": self.heads, "P": self.size, "N": self.d_state, "CHUNK": self.chunk}
        return sizes | {"RATIO": self.heads // self.groups}


@dataclass
class Launches:
    """The three launches of one batch of prefills, in order: steps(), states(tile), scan(tile).
    They fill `out`, and leave each request's state in its slot of the pool.

    x, out: (rows, H, P); b, c: (rows, G, N); dt: (rows, H) before bias and softplus: all of one
    floating type, each row contiguous, rows at any stride. a, d, dt_bias: (H,). pool: (slots, H, P,
    N), its last dimension contiguous. slots: (requests,) integers. warm: (requests,) bool, whether
    a request goes on from its slot's state; others start from zero. times: (2, chunks, H, chunk)
    float32, each row's dt' and the sum of dt' a log2(e) up to it. before: (chunks, H, P, N), the
    state before each chunk, in the type that the products take.
    """

    shape: Shape
    plan: Plan
    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    d: torch.Tensor
    dt_bias: torch.Tensor
    out: torch.Tensor
    pool: torch.Tensor
    slots: torch.Tensor
    warm: torch.Tensor
    times: torch.Tensor = field(init=False)
    before: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape, chunks = self.shape, self.plan.chunks
        rows = (2, chunks, shape.heads, shape.chunk)
        self.times = torch.empty(rows, dtype=torch.float32, device=self.x.device)
        self.before = self.x.new_empty((chunks, shape.heads, shape.size, shape.d_state))

    def steps(self) -> None:
        """Fill `times`."""
        plan, heads = self.plan, self.shape.heads
        grid = plan.chunks, triton.cdiv(heads, STEP_HEADS)
        given = self.dt, self.dt_bias, self.a, *self.times, plan.start, plan.size, self.dt.stride(0)
        _steps_kernel[grid](*given, HEADS=heads, CHUNK=self.shape.chunk, BLOCK_HEADS=STEP_HEADS)

    def states(self, tile: dict[str, int]) -> None:
        """Fill `before` and the pool. tile: BLOCK_P, BLOCK_N, num_warps, num_stages."""
        plan, shape = self.plan, self.shape
        blocks = triton.cdiv(shape.size, tile["BLOCK_P"]) * (shape.d_state // tile["BLOCK_N"])
        together = min(plan.requests, triton.cdiv(PROGRAMS, blocks * shape.heads))
        requests = plan.cu, plan.first, self.slots, self.warm, plan.track_rows, plan.track_slots
        strides = self.x.stride(0), self.b.stride(0), *self.pool.stride()[:3]
        _states_kernel[blocks, together, shape.heads](
            *(self.x, self.b, *self.times, self.before, self.pool),
            *requests,
            plan.requests,
            *strides,
            **shape.constants(),
            TRACK=plan.track_rows is not None,
            **tile,
        )

    def scan(self, tile: dict[str, int]) -> None:
        """Fill `out`. tile: BLOCK_HEADS (a divisor of H / G), num_warps, num_stages."""
        plan, shape = self.plan, self.shape
        strides = (tensor.stride(0) for tensor in (self.x, self.b, self.c, self.out))
        _scan_kernel[2, plan.chunks, shape.heads // tile["BLOCK_HEADS"]](
            *(self.x, self.b, self.c, self.d, *self.times, self.before, self.out),
            *(plan.start, plan.size, *strides),
            **shape.constants(),
            PA=shape.blocks[0],
            PB=shape.blocks[1],
            **tile,
        )
