"""Run a module of tests in a process where Triton interprets its kernels, so that the release's own
ones run on the CPU.

The interpreter must be chosen before triton is first imported, hence a process of its own. It is a
fork of one that has imported what sglang imports from others: most of ten seconds, which every
module would take again. Where tests run in several processes, all of them use the one that the
first has started.
"""

import atexit
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback

from host import standin_packages

# the variable with the socket of a server that several processes of tests use
SHARED = "PATCHQUEUE_INTERPRETED"

# What sglang's layers import from others. Nothing of sglang: each module says what is there before
# it.
LIBRARIES = (
    *("torch", "triton", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed"),
    *("torchvision", "torchao", "scipy.special", "transformers", "openai", "flashinfer", "IPython"),
    *("compressed_tensors", "aiohttp", "pydantic", "huggingface_hub"),
)


def run(module, cases):
    """What the module's compare(**case) returns for each of `cases` (a dict by name), by name. Its
    stderr shows when it fails."""
    done = call("host.interpreted", module, json.dumps(cases))
    assert done.returncode == 0, f"{module} ended with {done.returncode}: {done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def call(module, *words, folder="", **variables):
    """`python -m module words`; folder: one that comes first on its path, where no byte code is
    left; variables: its own."""
    with tempfile.TemporaryDirectory() as space, socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ.get(SHARED) or start_server())
        server.sendall((json.dumps([module, words, str(folder), space, variables]) + "\n").encode())
        code = int(server.makefile().readline())
        return subprocess.CompletedProcess(
            [module, *words], code, *(_read(space, name) for name in ("stdout", "stderr"))
        )


@functools.lru_cache(maxsize=1)
def start_server():
    """The socket of the process whose forks run the modules. It ends when this one closes its
    input, or ends."""
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    tests = os.path.dirname(os.path.dirname(__file__))
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], tests])
    folder = tempfile.mkdtemp(prefix="patchqueue-")
    path = os.path.join(folder, "interpreted")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()  # who connects before the server is ready waits
        command = [sys.executable, "-m", "host.interpreted", str(listening.fileno())]
        server = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, pass_fds=[listening.fileno()]
        )
    atexit.register(_end, server, folder)
    return path


def _end(server, folder):
    server.stdin.close()
    server.wait()
    shutil.rmtree(folder)


def _read(folder, name):
    path = os.path.join(folder, name)
    with (
        contextlib.suppress(FileNotFoundError),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        return file.read()
    return ""


def serve(listening):
    """Run a module for each connection, in a fork, several at a time; until standard input ends."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    forks = []
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection = listening.accept()[0]
        fork = os.fork()
        if not fork:
            _answer(connection)
        connection.close()
        forks = [one for one in [*forks, fork] if not os.waitpid(one, os.WNOHANG)[0]]
    # alone: a library's own process ends behind this one (inductor's workers, torch 2.8)
    for fork in forks:
        os.waitpid(fork, 0)


def _answer(connection):
    """Run the module that the connection names, in a fork, and answer with its exit code. Does not
    return."""
    try:
        words = json.loads(connection.makefile().readline())
        child = os.fork()
        if not child:
            _run_in_fork(*words)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(f"{code}\n".encode())
    finally:  # where the one that asked has ended, too
        os._exit(0)


def _run_in_fork(module, words, folder, space, variables):
    """As `python -m module words`, its output in files of `space`. Does not return."""
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(os.path.join(space, name), os.O_WRONLY | os.O_CREAT), number)
        sys.argv = [module, *words]
        os.environ.update(variables)
        if folder:
            sys.path.insert(0, folder)
            sys.dont_write_bytecode = True
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def start():
    """What the interpreter needs on a host without a GPU."""
    import torch
    import triton.runtime.interpreter as interpreter

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
    """The interpreter's, which cuts bfloat16's last bits off where a GPU rounds to the nearest, and
    loses denormal numbers."""
    import torch

    if (source.name, target.name, rounding_mode) == ("fp32", "bf16", None):
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")
    if (source.name, target.name) == ("bf16", "fp32"):
        return (values.astype("uint32") << 16).reshape(values.shape)
    return convert(values, source, target, rounding_mode)


def compare(module, cases):
    """Print what run() returns."""
    start()
    standin_packages.install()
    run_case, cases = importlib.import_module(module).compare, json.loads(cases)
    print(json.dumps({name: run_case(**case) for name, case in cases.items()}))


def resolve_late(package):
    """Where modules of `package` keep triton's functions under names of their own: look them up at
    each call.

    The interpreter replaces the functions in triton.language while a kernel runs; copies of them
    stay uncompiled builtins.
    """
    import triton.language as language

    for name in ("exp", "exp2", "log", "log2"):
        builtin, late = getattr(language, name), functools.partial(_call, language, name)
        for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
            for own in [key for key, value in vars(module).items() if value is builtin]:
                setattr(module, own, late)


def choose_first_configs(package):
    """Let autotuned kernels in modules of `package` take the first of their configurations: there
    is nothing to time."""
    for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
        for kernel in list(vars(module).values()):
            while kernel is not None:
                configs = getattr(kernel, "configs", None)
                if isinstance(configs, list):
                    kernel.configs = configs[:1]
                kernel = getattr(kernel, "fn", None)


def _call(language, name, *arguments):
    return getattr(language, name)(*arguments)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        compare(*sys.argv[1:])
    else:
        serve(socket.socket(fileno=int(sys.argv[1])))
