"""Have memory that a server lost while it slept show: SLEEP_NOTES=FILE, and PREFILL_HOOKS of
watch/sitecustomize.py names this file.

Behind each pause of the memory saver two thirds of what is free on the GPU are filled with ones,
which are NaN in every floating type, and given back: other engines may start there meanwhile.
Behind each wake one line of JSON in FILE says of the graphs' memory: how much it is, and how much
is not what it was before the pause.
SLEEP_WITHOUT=PATCH makes a control: back-up-captured-graphs or copy-all-reduce-inputs is undone.
"""

import json
import os
from types import SimpleNamespace

SAVER = "sglang.srt.utils.torch_memory_saver_adapter"
ALL_REDUCE = "sglang.srt.distributed.device_communicators.custom_all_reduce_v2"
GRAPHS = "cuda_graph"  # the tag
pools, sums = set(), {}  # of the graphs; (address, bytes) of a segment -> the sum of its words


def words_of(address, count):
    """`count` bytes at `address` of the GPU as int64, in place."""
    import torch

    interface = dict(shape=(count // 8,), typestr="<i8", data=(address, False), version=3)
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device="cuda")


def held():
    """What each segment of the graphs' pools holds now: (address, bytes) -> a sum."""
    import torch

    torch.cuda.synchronize()
    found = [
        (one["address"], one["total_size"])
        for one in torch.cuda.memory_snapshot()
        if tuple(one["segment_pool_id"]) in pools
    ]
    return {segment: words_of(*segment).sum().item() for segment in found}


def words_to_soil(free):
    """How many words of 4 bytes are filled of `free` bytes."""
    return free * 2 // 3 // 4


def soil():
    import torch

    torch.full((words_to_soil(torch.cuda.mem_get_info()[0]),), -1, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def note(before, after):
    changed = [segment for segment, total in before.items() if after.get(segment) != total]
    sizes = {"bytes": sum(size for _, size in before), "changed": sum(size for _, size in changed)}
    with open(os.environ["SLEEP_NOTES"], "a") as out:
        out.write(json.dumps(sizes) + "\n")


def watch_saver(module):
    kind = module._TorchMemorySaverAdapterReal
    cuda_graph, pause, resume = kind.cuda_graph, kind.pause, kind.resume

    def capture(self, **words):
        if words.get("pool"):  # else the graph's own, which nothing can name before its capture
            pools.add(tuple(words["pool"]))
        if os.environ.get("SLEEP_WITHOUT") == "back-up-captured-graphs":
            words.setdefault("enable_cpu_backup", False)
        return cuda_graph(self, **words)

    def fall_asleep(self, tag):
        if tag == GRAPHS:
            sums.clear()
            sums.update(held())
        pause(self, tag)
        soil()

    def wake(self, tag):
        resume(self, tag)
        if tag == GRAPHS:
            note(sums, held())

    kind.cuda_graph, kind.pause, kind.resume = capture, fall_asleep, wake


def share_inputs(module):
    """The second custom all-reduce as if no graph were paused."""
    unset = SimpleNamespace(get=lambda: False)
    module.envs = SimpleNamespace(SGLANG_MEMORY_SAVER_CUDA_GRAPH=unset)


HOOKS = {SAVER: watch_saver}  # what runs once a module is imported
if os.environ.get("SLEEP_WITHOUT") == "copy-all-reduce-inputs":
    HOOKS[ALL_REDUCE] = share_inputs
