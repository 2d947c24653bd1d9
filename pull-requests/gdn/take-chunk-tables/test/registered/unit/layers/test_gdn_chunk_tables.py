"""Chunk tables that a caller hands to the gated delta rule. No GPU."""

import unittest
from contextlib import nullcontext
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.attention.fla import chunk
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestGDNChunkTables(CustomTestCase):
    def test_every_kernel_reads_the_tables_of_the_caller(self):
        """Tables that a kernel builds itself would hold the batch of the capture."""
        seen = {}

        def note(name, result):
            def call(*args, **kwargs):
                seen[name] = kwargs
                return result

            return call

        rows = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16)
        gates = torch.zeros(1, 4, 1)
        tables = dict(
            chunk_indices=torch.zeros(2, 2, dtype=torch.int32),
            chunk_offsets=torch.zeros(2, dtype=torch.int32),
        )
        with (
            # The kernels enter the device of their tensors.
            patch.object(torch.cpu, "device", nullcontext, create=True),
            patch.object(chunk, "l2norm_fwd", lambda rows: rows),
            patch.object(chunk, "chunk_local_cumsum", note("cumsum", gates)),
            patch.object(
                chunk,
                "chunk_gated_delta_rule_fwd_intra",
                note("intra", (rows, rows, rows)),
            ),
            patch.object(
                chunk, "chunk_gated_delta_rule_fwd_h", note("h", (rows, rows))
            ),
            patch.object(chunk, "chunk_fwd_o", note("o", rows)),
        ):
            TritonGDNKernel().extend(
                rows,
                rows,
                rows,
                gates,
                gates,
                ssm_states=torch.zeros(1, 1, 64, 64),
                cache_indices=torch.zeros(1, dtype=torch.int32),
                query_start_loc=torch.tensor([0, 4], dtype=torch.int32),
                static_tables=tables,
            )
        for name in ("cumsum", "intra", "h", "o"):
            self.assertIs(seen[name]["chunk_indices"], tables["chunk_indices"])
        self.assertIs(seen["h"]["chunk_offsets"], tables["chunk_offsets"])

    def test_tables_are_built_where_none_are_given(self):
        seen = {}

        def intra(**kwargs):
            seen.update(kwargs)
            raise LookupError

        rows = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16)
        built = torch.zeros(1, 2, dtype=torch.int32)
        with (
            patch.object(torch.cpu, "device", nullcontext, create=True),
            patch.object(chunk, "l2norm_fwd", lambda rows: rows),
            patch.object(chunk, "chunk_local_cumsum", lambda g, **kwargs: g),
            patch.object(chunk, "prepare_chunk_indices", lambda *args: built),
            patch.object(chunk, "chunk_gated_delta_rule_fwd_intra", intra),
            self.assertRaises(LookupError),
        ):
            TritonGDNKernel().extend(
                rows,
                rows,
                rows,
                torch.zeros(1, 4, 1),
                torch.zeros(1, 4, 1),
                ssm_states=torch.zeros(1, 1, 64, 64),
                cache_indices=torch.zeros(1, dtype=torch.int32),
                query_start_loc=torch.tensor([0, 4], dtype=torch.int32),
            )
        self.assertIs(seen["chunk_indices"], built)


if __name__ == "__main__":
    unittest.main()
