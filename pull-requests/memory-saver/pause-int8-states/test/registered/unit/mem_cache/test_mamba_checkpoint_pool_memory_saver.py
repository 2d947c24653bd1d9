"""What of the int8 Mamba checkpoint pool a memory saver pauses. No GPU."""

import unittest
from contextlib import contextmanager
from unittest.mock import patch

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.mem_cache import mamba_checkpoint_pool as pools
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

register_cpu_ci(est_time=12, suite="base-a-test-cpu")


class _Saver:
    """A memory saver that notes which tensors are made in its region."""

    def __init__(self):
        self.tag, self.paused = None, []

    @contextmanager
    def region(self, tag, enable_cpu_backup=False):
        self.tag = tag
        yield
        self.tag = None

    def empty(self, *args, **kwargs):
        tensor = torch.zeros(*args, **kwargs)
        if self.tag == "kv_cache":
            self.paused.append(tensor.data_ptr())
        return tensor


class TestCheckpointPoolMemorySaver(CustomTestCase):
    def test_states_are_paused_and_free_slots_are_not(self):
        saver, created = _Saver(), []

        def free_slots(**kwargs):
            created.append(saver.tag)

        with (
            patch.object(TorchMemorySaverAdapter, "create", lambda enable: saver),
            patch.object(torch, "empty", saver.empty),
            patch.object(pools, "MambaSlotAllocator", free_slots),
        ):
            pool = pools.MambaCheckpointPool(
                num_layers=2,
                num_slots=4,
                num_heads=2,
                head_v_dim=8,
                head_k_dim=8,
                conv_shapes=[(16, 3)],
                conv_dtype=torch.float16,
                device="cpu",
                enable_memory_saver=True,
            )
        states = [pool.temporal.qdata, pool.temporal.scale, *pool.conv]
        self.assertEqual(saver.paused, [state.data_ptr() for state in states])
        self.assertEqual(created, [None])


if __name__ == "__main__":
    unittest.main()
