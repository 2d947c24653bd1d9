"""Mamba2's scan on chunk tables against the recurrence, interpreted. No GPU."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.mamba.triton_ops.ssd_varlen import (
    SSDTiles,
    get_hopper_tiles,
    ssd_varlen_fwd,
)

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

CHUNK, HEADS, HEADDIM, GROUPS, DSTATE = 16, 4, 24, 2, 16
FINAL, INSIDE = 1, 2  # modes of kda_prefill_track.py
PAD_CHUNK = 1 << 20
TILES = SSDTiles(
    states=dict(BLOCK_P=16, BLOCK_N=16, num_warps=4, num_stages=2),
    scan=dict(BLOCK_HEADS=2, num_warps=4, num_stages=2),
)


def _inputs(tokens, slots):
    torch.manual_seed(0)
    return dict(
        x=torch.randn(tokens, HEADS, HEADDIM),
        dt=torch.randn(tokens, HEADS),
        A=-torch.rand(HEADS) - 0.1,
        B=torch.randn(tokens, GROUPS, DSTATE),
        C=torch.randn(tokens, GROUPS, DSTATE),
        D=torch.randn(HEADS),
        dt_bias=torch.randn(HEADS),
        ssm_states=torch.randn(slots, HEADS, HEADDIM, DSTATE),
    )


def _tables(lens, rows, spare):
    """Tables of a batch with `rows` sequences and `spare` unused chunks."""
    lens = torch.tensor(lens + [0] * (rows - len(lens)))
    counts = (lens + CHUNK - 1) // CHUNK
    pairs = [[seq, one] for seq, count in enumerate(counts) for one in range(count)]
    zero = torch.zeros(1, dtype=torch.int32)
    return dict(
        cu_seqlens=torch.cat([zero, lens.cumsum(0).int()]),
        chunk_indices=torch.tensor(pairs + [[0, PAD_CHUNK]] * spare, dtype=torch.int32),
        chunk_offsets=torch.cat([zero, counts.cumsum(0).int()]),
    )


def _recurrence(given, begin, end, state):
    """Outputs of one sequence, and its state behind each number of tokens."""
    outputs, states = [], [state]
    for t in range(begin, end):
        step = torch.nn.functional.softplus(given["dt"][t] + given["dt_bias"])
        b, c = (given[name][t].repeat_interleave(HEADS // GROUPS, 0) for name in "BC")
        x = given["x"][t]
        decay = torch.exp(step * given["A"])[:, None, None]
        state = state * decay + (step[:, None] * x)[:, :, None] * b[:, None]
        outputs.append((state * c[:, None]).sum(-1) + given["D"][:, None] * x)
        states.append(state)
    return torch.stack(outputs), states


class TestSSDVarlen(CustomTestCase):
    def test_sequences_that_share_a_bucket_are_scanned_apart(self):
        """Cold and warm, in one chunk and several, kept inside and at the end."""
        lens, warm = [37, 5, 32], [False, True, True]
        total = sum(lens)
        given = _inputs(total + 6, 10)
        for name in "xBC":
            given[name][total:] = float("nan")  # rows behind the batch
        given["dt"][total:] = float("nan")
        pool = given["ssm_states"].clone()
        out = ssd_varlen_fwd(
            **given,
            **_tables(lens, rows=5, spare=3),
            cache_indices=torch.tensor([3, 1, 6, -1, -1], dtype=torch.int32),
            has_initial_state=torch.tensor(warm + [False, False]),
            chunk_size=CHUNK,
            tiles=TILES,
            track_mode=torch.tensor([INSIDE, 0, FINAL, 0, 0], dtype=torch.int32),
            track_chunk_idx=torch.tensor([2, -1, -1, -1, -1], dtype=torch.int32),
            track_dst=torch.tensor([8, 0, 9, 0, 0]),
        )
        begin, close = 0, dict(rtol=1e-4, atol=1e-4)
        for n, slot in enumerate((3, 1, 6)):
            first = pool[slot] if warm[n] else torch.zeros_like(pool[slot])
            rows, states = _recurrence(given, begin, begin + lens[n], first)
            torch.testing.assert_close(out[begin : begin + lens[n]], rows, **close)
            torch.testing.assert_close(given["ssm_states"][slot], states[-1], **close)
            if n == 0:
                inside = given["ssm_states"][8]
                torch.testing.assert_close(inside, states[2 * CHUNK], **close)
            begin += lens[n]
        self.assertTrue(given["ssm_states"][9].equal(given["ssm_states"][6]))
        self.assertTrue(out[total:].eq(0).all())
        for slot in (0, 2, 4, 5, 7):
            self.assertTrue(given["ssm_states"][slot].equal(pool[slot]))

    def test_no_states_are_kept_where_none_are_asked_for(self):
        given = _inputs(20, 3)
        pool = given["ssm_states"].clone()
        ssd_varlen_fwd(
            **given,
            **_tables([20], rows=1, spare=1),
            cache_indices=torch.tensor([1], dtype=torch.int32),
            has_initial_state=torch.tensor([True]),
            chunk_size=CHUNK,
            tiles=TILES,
        )
        self.assertFalse(given["ssm_states"][1].equal(pool[1]))
        for slot in (0, 2):
            self.assertTrue(given["ssm_states"][slot].equal(pool[slot]))

    def test_only_measured_sizes_have_tiles(self):
        def tiles(nheads=128, ngroups=8, headdim=80, dstate=128):
            return get_hopper_tiles(
                nheads=nheads, ngroups=ngroups, headdim=headdim, dstate=dstate
            )

        self.assertIsNone(tiles(headdim=128))
        self.assertIsNone(tiles(dstate=256))
        self.assertEqual(tiles().states["BLOCK_P"], 128)
        self.assertEqual(tiles(nheads=32, ngroups=2).states["BLOCK_P"], 64)
        # The heads of a program share a group.
        self.assertEqual(tiles().scan["BLOCK_HEADS"], 4)
        self.assertEqual(tiles(nheads=48, ngroups=8).scan["BLOCK_HEADS"], 2)


if __name__ == "__main__":
    unittest.main()
