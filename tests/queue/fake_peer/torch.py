"""As much of torch as tests/gpu/peer_engine.py takes: a profiler that writes what the fake vllm
ran. torch/profiler/profiler.py: profile, its export_chrome_trace, and ProfilerActivity."""

import json
import sys
import types

TRACES = []


def ran(tokens):
    """A kernel of `tokens` microseconds, for whoever traces."""
    for trace in TRACES:
        event = {"ph": "X", "cat": "kernel", "name": "nvjet", "ts": 1e4 * len(trace), "dur": tokens}
        trace.append(event)


class profile:
    def __init__(self, activities):
        assert activities == [ProfilerActivity.CUDA]
        self.events = []

    def __enter__(self):
        TRACES.append(self.events)

    def __exit__(self, *why):
        TRACES.remove(self.events)

    def export_chrome_trace(self, path):
        with open(path, "w") as out:
            json.dump({"traceEvents": self.events}, out)


class ProfilerActivity:
    CUDA = "cuda"


class cuda:
    @staticmethod
    def synchronize():
        pass


profiler = types.ModuleType("torch.profiler")
profiler.profile, profiler.ProfilerActivity = profile, ProfilerActivity
sys.modules["torch.profiler"] = profiler
__path__ = []
