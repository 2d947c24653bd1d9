"""A prefill's Mamba2 chunks are cut without the device. No GPU."""

import random
import unittest
from types import SimpleNamespace

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.layers.attention.mamba.mamba2_metadata import (
    ForwardMetadata,
    Mamba2Metadata,
)

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class TestMamba2ChunksOnHost(CustomTestCase):
    def test_a_prefill_is_prepared_without_a_value_from_the_device(self):
        on_device = {"device": "meta"}  # holds no values: asking for one fails
        metadata = ForwardMetadata(
            query_start_loc=torch.zeros(3, dtype=torch.int32, **on_device),
            mamba_cache_indices=torch.zeros(2, dtype=torch.int32, **on_device),
            has_mamba_track_mask=True,
            mamba_track_mask_indices=torch.zeros(1, dtype=torch.int64, **on_device),
        )
        mode = SimpleNamespace(is_decode=lambda: False, is_target_verify=lambda: False)
        batch = SimpleNamespace(
            forward_mode=mode,
            logical_forward_mode=mode,
            spec_info=None,
            seq_lens=torch.zeros(2, dtype=torch.int64, **on_device),
            extend_num_tokens=12,
            extend_seq_lens_cpu=[5, 7],
            extend_prefix_lens=torch.zeros(2, dtype=torch.int64, **on_device),
            extend_prefix_lens_cpu=[0, 8],
            mamba_track_mask=torch.zeros(2, dtype=torch.bool, **on_device),
            mamba_track_indices=torch.zeros(2, dtype=torch.int64, **on_device),
        )
        mixed = Mamba2Metadata.prepare_mixed(metadata, 4, batch).mixed_metadata
        self.assertTrue(mixed.prep_initial_states)
        self.assertEqual(mixed.chunk_indices.shape, (4,))  # cut at 0, 4, 5 and 8

    def test_chunks_are_those_that_were_cut_on_the_device(self):
        source = random.Random(3)
        for _ in range(100):
            lengths = [source.randint(1, 40) for _ in range(source.randint(1, 6))]
            chunk_size = source.choice([4, 8, 16])
            starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            found = Mamba2Metadata._chunks_of_lengths(lengths, chunk_size, "cpu")
            wanted = Mamba2Metadata._query_start_loc_to_chunk_indices_offsets(
                starts, chunk_size, sum(lengths)
            )
            for one, other in zip(found, wanted):
                self.assertEqual(one.dtype, torch.int32)
                self.assertEqual(one.tolist(), other.tolist())

    def test_the_host_says_whether_a_request_goes_on(self):
        asked = torch.zeros(2, dtype=torch.bool, device="meta")  # holds no values
        for prefixes, wanted in (([0, 0, 9], False), ([0, 4], True)):
            batch = SimpleNamespace(extend_prefix_lens_cpu=prefixes)
            self.assertEqual(Mamba2Metadata._any_goes_on(batch, asked), wanted)

    def test_the_device_is_asked_where_the_host_does_not_know(self):
        batch = SimpleNamespace(extend_prefix_lens_cpu=None)
        self.assertTrue(Mamba2Metadata._any_goes_on(batch, torch.tensor([False, True])))


if __name__ == "__main__":
    unittest.main()
