"""The releases' kernels of a gated delta rule's prefill, launched by chunk tables that are on the
device already. Their wrappers ask `prepare_chunk_indices` and `prepare_chunk_offsets` for these
tables, each through its own module; that waits for the device, and answers for a tensor that has
been filled anew with what it answered before."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from . import features

GATES = "sglang.kernels.ops.attention.linear"  # of fused_gdn_gating, from 0.5.23 on
FLA, LATER_FLA = "sglang.srt.layers.attention.fla", "sglang.kernels.ops.attention.fla"
# rows of a chunk, and of what it is solved in where that is a launch of its own
CHUNK, PART = (64, 16)
BACKEND, KERNEL, FLASHINFER = "GDNAttnBackend", "TritonGDNKernel", "FlashInferGDNKernel"


@functools.cache
def _package() -> str:
    return LATER_FLA if features.has(f"{LATER_FLA}.chunk") else FLA


def rule() -> Callable[..., Any]:
    """The release's chunk_gated_delta_rule, which reads and writes its states in a pool."""
    return importlib.import_module(f"{_package()}.chunk").chunk_gated_delta_rule


def gates() -> Callable[..., Any]:
    """The release's fused_gdn_gating: g and beta, (1, rows, heads) each."""
    package = GATES if features.has(f"{GATES}.fused_gdn_gating") else _package()
    return importlib.import_module(f"{package}.fused_gdn_gating").fused_gdn_gating


def normalize() -> Callable[..., Any]:
    """The release's l2norm_fwd, over each head of a contiguous tensor."""
    return importlib.import_module(f"{_package()}.l2norm").l2norm_fwd


def solves_parts() -> bool:
    """Whether the release solves chunks in parts of 16 rows first (up to 0.5.9)."""
    return hasattr(importlib.import_module(f"{_package()}.chunk"), "solve_tril")


def keeps_states() -> bool:
    """Whether the prefix cache's states of a prefill are those of kernels/tracked_states.py (from
    0.5.13)."""
    return features.hides_attention_backend()


@contextlib.contextmanager
def chunked_by(pairs: Any, parts: Any, offsets: Any) -> Iterator[None]:
    """Let the release's wrappers take these tables inside. pairs: (chunks, 2), the request of each
    chunk and its number there. parts: the same of chunks of 16 rows. offsets: (requests + 1,), each
    request's first chunk."""
    package = _package()
    with contextlib.ExitStack() as patched:
        for name, module in list(sys.modules.items()):
            if not name.startswith(f"{package}.") or name == f"{package}.index":
                continue
            solved_by = PART if name == f"{package}.solve_tril" else None

            def indices(cu: Any, size: int, solved_by: int | None = solved_by) -> Any:
                return parts if size == solved_by else pairs

            for key, stand_in in (
                ("prepare_chunk_indices", indices),
                ("prepare_chunk_offsets", lambda cu, size: offsets),
            ):
                if key in vars(module):
                    patched.enter_context(mock.patch.object(module, key, stand_in))
        yield


def flashinfer_prefill(backend: Any) -> Callable[..., Any] | None:
    """FlashInfer's chunk_gated_delta_rule where that runs the prefills of `backend` on compute
    capability 9.0, and leaves states behind steps (from 0.5.17); else None."""
    kernel = getattr(getattr(backend, "kernel_dispatcher", None), "extend_kernel", None)
    steps = getattr(kernel, "uses_state_checkpoints", False)
    if type(kernel).__name__ != FLASHINFER or not steps or kernel.use_state_pool:
        return None  # a pool of states: from compute capability 10.0 on
    return kernel._prefill_fn


def other_kernels(backend: Any) -> str | None:
    """What other than these kernels and FlashInfer's runs linear attention, or None. backend: the
    linear half of a hybrid attention backend, which chooses kernels from 0.5.10 on."""
    if type(backend).__name__ != BACKEND:
        return f"linear attention runs in a {type(backend).__name__}, not in a {BACKEND}"
    dispatcher = getattr(backend, "kernel_dispatcher", None)
    if dispatcher is None:
        return None
    kernel = type(getattr(dispatcher, "extend_kernel", None)).__name__
    if kernel == KERNEL or flashinfer_prefill(backend):
        return None
    return f"prefills run in a {kernel}; --linear-attn-prefill-backend triton captures them"
