"""Compile the attention kernels that every engine needs, all at once, while the first engine
starts: `python kernels.py KIND HEAD_DIM`.

flashinfer compiles a module where it is first used, and whoever needs it meanwhile waits at its
lock (flashinfer 0.6.3, jit/core.py:296): 50 s on 16 cores for the decode kernels alone. Where this
fails, it says so in its log, and engines compile for themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import launch

# whose attention an engine has; FlashAttention 3 comes compiled in each release's sgl_kernel
FLASHINFER = "flashinfer"
ATTENTION = (FLASHINFER, "fa3")
# of every model in models.MODELS; modules differ in the last alone
HEADS, KV_HEADS, HEAD_DIM = (8, 2, 128)


@contextlib.contextmanager
def made_ahead(
    place: launch.Place, device: str, attention: str, head_dim: int = HEAD_DIM
) -> Iterator[list[int]]:
    """One process for each kind beside what runs inside, by their numbers; none is left behind.
    attention: of ATTENTION; nothing is to be made for another than FlashInfer's."""
    with contextlib.ExitStack() as stack:
        processes = []
        for kind in KINDS if attention == FLASHINFER else ():
            log = stack.enter_context((place.out / f"kernels.{kind}.log").open("wb"))
            environment = place.environment(CUDA_VISIBLE_DEVICES=device)
            words = [__file__, kind, str(head_dim)]
            processes.append(launch.spawn(place, words, environment, log))
            stack.callback(launch.kill, processes[-1])
        yield [process.pid for process in processes]


def wait(processes: Sequence[int], until: float) -> None:
    """Until all have ended, or time.time() is `until`: an engine that is timed then has the host to
    itself. processes: their numbers."""
    while time.time() < until and any(map(launch.members, processes)):
        time.sleep(launch.POLL_S)


def decode(torch, flashinfer, workspace, head_dim) -> None:
    """The fa2 module, as sglang plans a decode of grouped queries (and a prefill behind a cached
    prefix)."""
    words = dict(backend="fa2", use_tensor_cores=True)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", **words)
    span, first, one = _numbers(torch, 0, 1), _numbers(torch, 0), _numbers(torch, 1)
    kinds = dict(q_data_type=torch.bfloat16, data_type=torch.bfloat16)
    wrapper.plan(span, first, one, HEADS, KV_HEADS, head_dim, 1, **kinds)


def prefill(torch, flashinfer, workspace, head_dim) -> None:
    """The module that flashinfer itself chooses for new tokens: fa3 on Hopper."""
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    span = _numbers(torch, 0, 1)
    wrapper.plan(span, span, HEADS, KV_HEADS, head_dim, causal=True, q_data_type=torch.bfloat16)


def merge(torch, flashinfer, workspace, head_dim) -> None:
    """What joins a cached prefix's attention with the new tokens'."""
    values = torch.zeros((1, HEADS, head_dim), dtype=torch.bfloat16, device="cuda")
    sums = torch.zeros((1, HEADS), dtype=torch.float32, device="cuda")
    flashinfer.merge_state(values, sums, values, sums)


def _numbers(torch, *values: int):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


KINDS = {"decode": decode, "prefill": prefill, "merge": merge}

if __name__ == "__main__":
    import flashinfer
    import torch

    # As sglang does (set_cuda_arch, srt/utils/common.py): flashinfer compiles again where its flags
    # differ.
    major, minor = torch.cuda.get_device_capability()
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{'a' if major >= 9 else ''}"
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    KINDS[sys.argv[1]](torch, flashinfer, workspace, int(sys.argv[2]))
    print(f"{Path(__file__).name}: {sys.argv[1]} made")
