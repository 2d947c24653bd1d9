"""Run a module of tests in a process where Triton interprets its kernels, so that the release's own
ones run on the CPU.

The interpreter must be chosen before triton is first imported, hence a process of its own. It is a
fork of one that has imported host.preloaded: what a comparison changes in the release's modules
ends with its fork.
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

_builtins = {}  # of triton.language, by name, as modules find them before any kernel has run


@functools.cache
def _forks():
    """The context of multiprocessing whose forks have imported host.preloaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["host.preloaded"])
    variables = dict(TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join(sys.path))
    with mock.patch.dict(os.environ, variables):
        multiprocessing.forkserver.ensure_running()
    return context


def _in_fork(function, *arguments):
    with ProcessPoolExecutor(1, _forks()) as pool:
        return pool.submit(function, *arguments).result()


def run(module, cases):
    """What the module's compare(**case) returns for each of `cases` (a dict by name), by name."""
    return _in_fork(_compare, module, cases)


def _compare(module, cases):
    run_case = importlib.import_module(module).compare
    return {name: run_case(**case) for name, case in cases.items()}


def call(module, *words, folder="", **variables):
    """`python -m module words`; folder: one that comes first on its path, where no byte code is
    left; variables: its own."""
    return _in_fork(_command, module, words, str(folder), variables)


def _command(module, words, folder, variables):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]
    sys.argv = [module, *words]
    os.environ.update(variables)
    if folder:
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
    code, (stdout, stderr) = 0, (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return subprocess.CompletedProcess([module, *words], code, stdout.getvalue(), stderr.getvalue())


def start():
    """What the interpreter needs on a host without a GPU."""
    import torch
    import triton.language as language
    import triton.runtime.interpreter as interpreter

    _builtins.update((name, getattr(language, name)) for name in ("exp", "exp2", "log", "log2"))
    patch = interpreter._patch_lang_tensor

    def patched(tensor, *scope):  # triton 3.6 has the latter too
        patch(tensor, *scope)
        # NumPy 2.4 refuses int() of an array of one
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched
    interpreter._convert_float = functools.partial(_convert_float, interpreter._convert_float)
    # kernels enter the device of their tensors
    torch.cuda.device = torch.cpu.device = lambda *_: contextlib.nullcontext()
    _spare(interpreter)


def _spare(interpreter):
    """Leave out what the interpreter does again and again to no effect."""
    # each sum of integers once more in 64 bits, for an assertion that it drops unless it debugs
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    # a table of all types for each look into it
    look_up, found = interpreter._get_np_dtype, {}

    def numpy_type(kind):
        name = kind.scalar.name
        if name not in found:
            found[name] = look_up(kind)
        return found[name]

    interpreter._get_np_dtype = numpy_type
    # the language patched at each call of a function, not once in a launch
    launch, patch, patched = interpreter.GridExecutor.__call__, interpreter._patch_lang, set()

    def launched(executor, *arguments, **words):
        patched.clear()
        return launch(executor, *arguments, **words)

    def patch_once(function):
        seen = id(function.__globals__)
        if seen not in patched:
            patched.add(seen)
            return patch(function)

    interpreter.GridExecutor.__call__, interpreter._patch_lang = launched, patch_once


def _convert_float(convert, values, source, target, rounding_mode):
    """The interpreter's cuts bfloat16's last bits off, where a GPU rounds, and loses denormals."""
    import torch

    if (source.name, target.name, rounding_mode) == ("fp32", "bf16", None):
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")
    if (source.name, target.name) == ("bf16", "fp32"):
        return (values.astype("uint32") << 16).reshape(values.shape)
    return convert(values, source, target, rounding_mode)


def resolve_late(package):
    """Where modules of `package` keep triton's functions under names of their own: look them up at
    each call, as the interpreter replaces those of triton.language while a kernel runs."""
    import triton.language as language

    for name, builtin in _builtins.items():
        late = functools.partial(_call, language, name)
        for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
            for own in [key for key, value in vars(module).items() if value is builtin]:
                setattr(module, own, late)


def choose_first_configs(package):
    """Let autotuned kernels of `package` take their first configuration: nothing is to be timed."""
    for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
        for kernel in list(vars(module).values()):
            while kernel is not None:
                configs = getattr(kernel, "configs", None)
                if isinstance(configs, list):
                    kernel.configs = configs[:1]
                kernel = getattr(kernel, "fn", None)


def _call(language, name, *arguments):
    return getattr(language, name)(*arguments)
