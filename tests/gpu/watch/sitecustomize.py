"""Write down what every prefill of an engine ran on, from inside its scheduler: PREFILL_WATCH=FILE,
this folder on PYTHONPATH.

One JSON line per prefill: when, its mode, how many tokens and requests, whether the prefill runner
replayed, and how many CUDA graphs were launched meanwhile. Counting the launches is the proof: a
runner that falls back replays none. With PREFILL_REASONS=1, which takes time, a line says why a
runner refused: its own word, else its last lines that ran. The first line of a runner also has the
sizes that it captured, and how many times its own tokens a batch may be padded to, if that has a
limit. With PREFILL_KEEP_EAGER=1 as well, every runner refuses every batch, and FlashInfer's delta
rule runs each sequence whole.
PREFILL_FORGET=MODULE:FUNCTION, for a control: the function does nothing, as if the patch that calls
it were not there.
PREFILL_FILES=1: FILE.files gets a line for each module of sglang that a process looks up ("m
NAME") and for each file of sglang/ that it opens ("o PATH"), for lab/evidence/footprints.py.
"""

import faulthandler
import functools
import gc
import importlib.abc
import importlib.util
import inspect
import json
import linecache
import os
import pathlib
import signal
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
RUNNERS = {
    "sglang.srt.model_executor.piecewise_cuda_graph_runner": "PiecewiseCudaGraphRunner",
    "sglang.srt.model_executor.breakable_cuda_graph_runner": "BreakableCudaGraphRunner",
    # the queue's own, where the release has none
    "sglang.srt.prefill_graph.breakable.runner": "BreakableRunner",
    "sglang.srt.model_executor.runner.prefill_cuda_graph_runner": "PrefillCudaGraphRunner",
}
# model_executor/runner/prefill_cuda_graph_runner.py:119 in 0.5.16
PADDING = "_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR"
state = {"runner": None, "why": None, "launches": 0, "captured": [], "padding": None}
state |= {"counting": False, "noted": False}
# The last that an engine's processes import: the one that asks, the scheduler, the detokenizer.
LAST = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
)
PACKAGE = "sglang"
REFUSED_IN = 4  # lines of a runner's code that show a refusal: conditions, and what was returned


class Notes(importlib.abc.MetaPathFinder):
    """What this process looks up and opens of the package, written at once: engines are killed.
    What a fork loads its parent has noted."""

    def __init__(self, file):
        self.noted, self.out = set(), os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for name in filter(is_ours, list(sys.modules)):
            self.note(f"m {name}")

    def note(self, line):
        if line not in self.noted:
            self.noted.add(line)
            os.write(self.out, f"{line}\n".encode())

    def find_spec(self, name, path=None, target=None):
        if is_ours(name):
            self.note(f"m {name}")

    def audit(self, event, arguments):
        if event != "open" or not isinstance(arguments[0], str | bytes):
            return
        _, found, path = os.fsdecode(arguments[0]).rpartition(f"{os.sep}{PACKAGE}{os.sep}")
        if found and not path.endswith((".pyc", ".so")):
            self.note(f"o {PACKAGE}/{path}")


def is_ours(name):
    return name.partition(".")[0] == PACKAGE


def watch_launches():
    import torch

    original = torch.cuda.CUDAGraph.replay

    def replay(self):
        state["launches"] += 1
        return original(self)

    torch.cuda.CUDAGraph.replay = replay


def watch_runner(module, name):
    kind = getattr(module, name)
    state["padding"] = getattr(module, PADDING, None)
    for method in ("replay", "execute"):  # "execute" in later releases
        original = kind.__dict__.get(method)
        if original is None:
            continue

        def wrapped(self, *args, _original=original, **kwargs):
            # all releases call it so: model_executor/piecewise_cuda_graph_runner.py:173 in 0.5.9
            state["runner"] = name
            state["captured"] = sorted(getattr(self, "capture_num_tokens", ()))
            return _original(self, *args, **kwargs)

        setattr(kind, method, wrapped)
    for method in ("can_run", "can_run_graph"):
        if method in kind.__dict__ and os.environ.get("PREFILL_KEEP_EAGER"):
            setattr(kind, method, lambda self, *args, **kwargs: False)
        elif method in kind.__dict__ and os.environ.get("PREFILL_REASONS"):
            setattr(kind, method, noting_refusals(kind.__dict__[method]))


def noting_refusals(original):
    """A runner's own decision, which notes why it was no."""

    def decide(self, batch, *args, **kwargs):
        lines = []

        def trace(frame, event, _):
            if frame.f_code.co_filename != original.__code__.co_filename:
                return None
            if event == "line":
                lines.append((frame.f_code.co_filename, frame.f_lineno))
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            allowed = original(self, batch, *args, **kwargs)
        finally:
            sys.settrace(before)
        state["why"] = None if allowed else reason(self, batch, lines)
        return allowed

    # the queue's report reads from a runner's code what it asks for (prefill_graph/compat/eager.py)
    names = (*decide.__code__.co_names, *names_in(original.__code__))
    decide.__code__ = decide.__code__.replace(co_names=names)
    return decide


def names_in(code):
    """Every name that a function's code has, and what is written inside of it."""
    yield from (*code.co_names, *code.co_varnames)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def reason(runner, batch, lines):
    """The runner's own word, which the queue's has; else the code that refused."""
    said = runner.why_not(batch) if hasattr(runner, "why_not") else None
    if said or not lines:
        return said
    code = " ".join(linecache.getline(*place).strip() for place in lines[-REFUSED_IN:])
    return f"{pathlib.Path(lines[-1][0]).name}:{lines[-1][1]}: {code}"


def watch_model_runner(module):
    original = module.ModelRunner.forward

    def forward(self, forward_batch, *args, **kwargs):
        # drafts are no prefills, nor is what the target verifies
        if forward_batch.forward_mode.name not in ("EXTEND", "MIXED") or self.is_draft_worker:
            return original(self, forward_batch, *args, **kwargs)
        if not state["counting"]:
            watch_launches()
            state["counting"] = True
        state["runner"], state["why"], before = None, None, state["launches"]
        line = {  # as the batch is before it runs
            "mode": forward_batch.forward_mode.name,
            "tokens": len(forward_batch.input_ids),
            "requests": int(forward_batch.batch_size),
        }
        result = original(self, forward_batch, *args, **kwargs)
        launches = state["launches"] - before
        line |= {"at": time.time(), "runner": state["runner"], "launches": launches}
        if state["why"]:
            line["why"] = state["why"]
        if state["runner"] and not state["noted"]:
            line |= {"captured": state["captured"], "padding": state["padding"]}
            state["noted"] = True
        with open(f"{os.environ['PREFILL_WATCH']}.{os.getpid()}", "a") as out:
            out.write(json.dumps(line) + "\n")
        return result

    module.ModelRunner.forward = forward


def watch_reasons(module):
    """Note the queue's own word for a prefill that runs eagerly, where the runner's class has
    none: a subclass of the release's refuses too (prefill_graph/piecewise/with_states.py)."""
    original = module.why

    def why(runner, forward_batch):
        said = original(runner, forward_batch)
        state["why"] = state["why"] or said
        return said

    module.why = why


def watch_delta_rule(module):
    """For few requests FlashInfer's kernel cuts a sequence into parts, which rounds otherwise than
    the whole sequence that a graph has (captured/flashinfer_rule.py). A reference does as the
    graph."""
    original = module.chunk_gated_delta_rule
    if "use_cp" in inspect.signature(original).parameters:
        module.chunk_gated_delta_rule = functools.partial(original, use_cp=False)


class AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path, target=None):
        hook = self.hooks.pop(name, None)
        spec = importlib.util.find_spec(name) if hook else None
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def next_sitecustomize():
    """Another one further down the path would not be run otherwise."""
    folders = [pathlib.Path(folder or ".").resolve() for folder in sys.path]
    for folder in folders[folders.index(HERE) + 1 :] if HERE in folders else []:
        file = folder / "sitecustomize.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("next_sitecustomize", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def watch():
    """Begin: PREFILL_WATCH asks for it."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # launch.show_stacks
    if os.environ.get("PREFILL_FILES"):
        notes = Notes(os.environ["PREFILL_WATCH"] + ".files")
        sys.meta_path.insert(0, notes)
        sys.addaudithook(notes.audit)
    hooks = {
        name: lambda module, kind=kind: watch_runner(module, kind) for name, kind in RUNNERS.items()
    }
    hooks["sglang.srt.model_executor.model_runner"] = watch_model_runner
    if os.environ.get("PREFILL_REASONS"):
        hooks["sglang.srt.prefill_graph.compat.eager"] = watch_reasons
    if os.environ.get("PREFILL_KEEP_EAGER"):
        hooks["flashinfer.gdn_prefill"] = watch_delta_rule
    if forgotten := os.environ.get("PREFILL_FORGET"):
        forgotten_in, _, function = forgotten.partition(":")
        hooks[forgotten_in] = lambda module: setattr(module, function, lambda *_, **__: None)
    # Imports are most of an engine's processor time, and looking for garbage is a fifth of that.
    gc.disable()
    hooks |= dict.fromkeys(LAST, lambda _: gc.enable())
    sys.meta_path.insert(0, AfterImport(hooks))


if os.environ.get("PREFILL_WATCH"):
    watch()
next_sitecustomize()
