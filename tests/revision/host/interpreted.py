"""Run a module of tests in a process where Triton interprets its kernels, so that the release's own ones run on the CPU.

The interpreter must be chosen before triton is first imported, hence the process of its own. In it, `start` comes first.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys


def run(module, cases):
    """What `python -m module` makes of `cases` (a dict by name): its results by name. Its stderr shows when it fails."""
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], os.path.dirname(os.path.dirname(__file__))])
    done = subprocess.run([sys.executable, "-m", module, json.dumps(cases)], env=variables, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def start():
    """What the interpreter needs on a host without a GPU."""
    import torch
    import triton.runtime.interpreter as interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, *scope):  # triton 3.6 has the latter too
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # NumPy 2.4 refuses int() of an array of one

    interpreter._patch_lang_tensor = patched
    interpreter._convert_float = functools.partial(_convert_float, interpreter._convert_float)
    torch.cuda.device = torch.cpu.device = lambda *_: contextlib.nullcontext()  # kernels enter the device of their tensors


def _convert_float(convert, values, source, target, rounding_mode):
    """The interpreter's, which cuts bfloat16's last bits off where a GPU rounds to the nearest, and loses denormal numbers."""
    import torch

    if (source.name, target.name, rounding_mode) == ("fp32", "bf16", None):
        return torch.tensor(values).to(torch.bfloat16).view(torch.int16).numpy().view("uint16")
    if (source.name, target.name) == ("bf16", "fp32"):
        return (values.astype("uint32") << 16).reshape(values.shape)
    return convert(values, source, target, rounding_mode)


def main(compare):
    """Print what compare(**case) returns for each case that the command line gives."""
    print(json.dumps({name: compare(**case) for name, case in json.loads(sys.argv[1]).items()}))


def resolve_late(package):
    """Where modules of `package` keep triton's functions under names of their own: look them up at each call.

    The interpreter replaces the functions in triton.language while a kernel runs; copies of them stay uncompiled builtins.
    """
    import triton.language as language

    for name in ("exp", "exp2", "log", "log2"):
        builtin, late = getattr(language, name), functools.partial(_call, language, name)
        for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
            for own in [key for key, value in vars(module).items() if value is builtin]:
                setattr(module, own, late)


def choose_first_configs(package):
    """Let autotuned kernels in modules of `package` take the first of their configurations: there is nothing to time."""
    for module in [module for key, module in sys.modules.items() if key.startswith(package)]:
        for kernel in list(vars(module).values()):
            while kernel is not None:
                configs = getattr(kernel, "configs", None)
                if isinstance(configs, list):
                    kernel.configs = configs[:1]
                kernel = getattr(kernel, "fn", None)


def _call(language, name, *arguments):
    return getattr(language, name)(*arguments)
