"""The ranks of a server share its first GPU, where ranks learn of theirs from what a release
declares of its arguments (0.5.20 and later): this folder first on PYTHONPATH. For earlier ones
watch/sitecustomize.py does it.

A step of 0 from rank to rank is refused as an argument, so that it is declared behind that check.
NCCL refuses two ranks on one GPU of a host: each process calls itself a host of its own, and they
talk through sockets.
"""

import functools
import importlib.abc
import importlib.util
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODULE = "sglang.srt.server_args"


def share(module):
    original = module.ServerArgs.check_server_args

    @functools.wraps(original)
    def check(self):
        original(self)
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(self, "ranks share one GPU", gpu_id_step=0)

    module.ServerArgs.check_server_args = check


class AfterImport(importlib.abc.MetaPathFinder):
    done = False

    def find_spec(self, name, path, target=None):
        if name != MODULE or self.done:
            return None
        self.done = True
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            share(module)

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


os.environ |= {
    "NCCL_HOSTID": str(os.getpid()),
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
sys.meta_path.insert(0, AfterImport())
next_sitecustomize()
