"""CUDA graphs whose memory a memory saver pauses: SGLANG_MEMORY_SAVER_CUDA_GRAPH beside
--enable-memory-saver. Every release captures its decode graphs in the saver's region then. Memory
comes back as zeros unless a copy was kept, and kernels keep counters in a graph's pool
(sglang#32718), which prefill and decode share: both are backed up."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from .features import defines

VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"


def saver() -> Any:
    """The release's adapter of the memory saver. `enabled` is true where it is to pause graphs."""
    from sglang.srt.utils import get_bool_env_var
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

    asked = get_bool_env_var(VARIABLE) and bool(_server_args().enable_memory_saver)
    return TorchMemorySaverAdapter.create(enable=asked)


@contextlib.contextmanager
def cache_region() -> Iterator[None]:
    """What is allocated inside is paused with the KV cache, where a server has a memory saver."""
    from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

    adapter = TorchMemorySaverAdapter.create(enable=bool(_server_args().enable_memory_saver))
    with adapter.region(GPU_MEMORY_TYPE_KV_CACHE):
        yield


def pausable(graph: Any) -> Any:
    """`graph`, a torch.cuda.CUDAGraph to be captured, or what makes its memory paused with the
    rest."""
    adapter = saver()
    return Pausable(graph, adapter) if adapter.enabled else graph


class Pausable:
    """A torch.cuda.CUDAGraph that is captured in the saver's region; all else is asked of
    `graph`."""

    def __init__(self, graph: Any, adapter: Any) -> None:
        self.graph = graph
        self._adapter = adapter
        self._capture: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """As torch.cuda.CUDAGraph has it; further words of later torch keep their defaults."""
        capture = self._adapter.cuda_graph(
            cuda_graph=self.graph,
            pool=pool,
            stream=torch.cuda.current_stream(),
            capture_error_mode=capture_error_mode,
            tag=_tag(),
            enable_cpu_backup=True,
        )
        with _without_clean_up():
            capture.__enter__()
        self._capture = capture

    def capture_end(self) -> None:
        capture, self._capture = self._capture, None
        capture.__exit__(None, None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)


def empty_cache(device: Any = torch.cuda) -> None:
    """torch.cuda.empty_cache(), for paused graphs too: up to torch_memory_saver 0.0.9.post1 a
    region's memory is freed inside of a region alone."""
    adapter = saver()
    if adapter.enabled:
        with adapter.region(tag=_tag()):
            device.empty_cache()
    device.empty_cache()


@contextlib.contextmanager
def _without_clean_up() -> Iterator[None]:
    """torch.cuda.graph collects garbage and empties the cache first: too slow for thousands of
    segments."""
    with (
        mock.patch.object(gc, "collect", lambda *_: 0),
        mock.patch.object(torch.cuda, "empty_cache", lambda: None),
    ):
        yield


def _tag() -> str:
    from sglang.srt.constants import GPU_MEMORY_TYPE_CUDA_GRAPH

    return GPU_MEMORY_TYPE_CUDA_GRAPH


def _server_args() -> Any:
    """This process's: in runtime_context from 0.5.15 on, which is the only place from 0.5.20 on."""
    context, arguments = "sglang.srt.runtime_context", "sglang.srt.server_args"
    if defines(context, "get_server_args"):
        return importlib.import_module(context).get_server_args()
    return importlib.import_module(arguments).get_global_server_args()
