"""torch_memory_saver without a GPU: its own Python on a stand-in for the library that it loads
before all others.

saver = Saver() saver.install(monkeypatch)      the release's adapter finds it; torch.cuda.graph
runs on the stand-in for graphs saver.library.region            (tag, kept on the host) of what
cudaMalloc would allocate now, None outside of a region
"""

import collections
import contextlib

import torch


class Library:
    """The state that the library keeps for a thread, asked and set through the functions that its
    Python calls."""

    def __init__(self):
        self.inside, self.tag, self.backup = False, b"default", False
        # for each torch.cuda.empty_cache(): whether cudaFree would know paused memory
        self.freed_inside = []

    @property
    def region(self):
        return (self.tag.decode(), self.backup) if self.inside else None

    def tms_set_current_tag(self, tag):
        self.tag = tag

    def tms_get_current_tag(self):
        return self.tag

    def tms_set_interesting_region(self, inside):
        self.inside = inside

    def tms_get_interesting_region(self):
        return self.inside

    def tms_set_enable_cpu_backup(self, backup):
        self.backup = backup

    def tms_get_enable_cpu_backup(self):
        return self.backup

    def tms_get_cpu_backup_backend(self):
        return b"pinned"

    def tms_set_cpu_backup_backend(self, backend):
        assert backend == b"pinned"

    def tms_get_enable_disk_backup(self):
        return False

    def tms_set_enable_disk_backup(self, backup):
        assert not backup


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
