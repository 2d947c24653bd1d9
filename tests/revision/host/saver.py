"""torch_memory_saver without a GPU: its own Python on a stand-in for the library that it loads
before all others.

saver = Saver() saver.install(monkeypatch)      the release's adapter finds it; torch.cuda.graph
runs on the stand-in for graphs saver.library.region            (tag, kept on the host) of what
cudaMalloc would allocate now, None outside of a region
"""

import collections
import contextlib
import functools

import torch


class Library:
    """The states that the library keeps for a thread, asked and set through the functions that its
    Python calls: tms_get_STATE and tms_set_STATE."""

    def __init__(self):
        self.states = dict(
            interesting_region=False,
            current_tag=b"default",
            enable_cpu_backup=False,
            cpu_backup_backend=b"pinned",
            enable_disk_backup=False,
        )
        # for each torch.cuda.empty_cache(): whether cudaFree would know paused memory
        self.freed_inside = []

    def __getattr__(self, name):
        verb, state = name[: len("tms_get_")], name[len("tms_get_") :]
        if state not in self.states:
            raise AttributeError(name)
        if verb == "tms_set_":
            return functools.partial(self.states.__setitem__, state)
        return lambda: self.states[state]

    @property
    def inside(self):
        return self.states["interesting_region"]

    @property
    def region(self):
        tag, backup = self.states["current_tag"], self.states["enable_cpu_backup"]
        return (tag.decode(), backup) if self.inside else None


class Saver:
    """The package's own TorchMemorySaver, as it is once the library was loaded."""

    def __init__(self):
        from torch_memory_saver import binary_wrapper, entrypoint

        self.library = Library()
        wrapper = object.__new__(binary_wrapper.BinaryWrapper)
        wrapper.cdll = self.library
        implementation = object.__new__(entrypoint._TorchMemorySaverImpl)
        # what a region allocates outside of graphs is of no matter here
        pools = collections.defaultdict(object)
        known = dict(
            _mem_pools=pools, _primary_mem_pool=None, _device_module=torch.cuda, _is_xpu=False
        )
        vars(implementation).update(known, _hook_mode="preload", _binary_wrapper=wrapper)
        self.package = entrypoint.TorchMemorySaver()
        self.package._impl = implementation

    def install(self, monkeypatch):
        from sglang.srt.utils import torch_memory_saver_adapter as adapter

        monkeypatch.setattr(adapter, "_memory_saver", self.package)
        monkeypatch.setattr(adapter, "import_error", None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", object())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(
            torch.cuda, "empty_cache", lambda: self.library.freed_inside.append(self.library.inside)
        )
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
        monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
