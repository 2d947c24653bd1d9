"""The ranks of a server share its first GPU, where ranks learn of theirs from what a release
declares of its arguments (0.5.20 and later): this folder first on PYTHONPATH. For earlier ones
watch/sitecustomize.py does it.

A step of 0 from rank to rank is refused as an argument, so that it is declared behind that check.
NCCL refuses two ranks on one GPU of a host: each process calls itself a host of its own, and they
talk through sockets.
"""

import functools
import importlib.util
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("startup", HERE.parent / "startup.py")
startup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(startup)
MODULE = "sglang.srt.server_args"


def share(module):
    original = module.ServerArgs.check_server_args

    @functools.wraps(original)
    def check(self):
        original(self)
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(self, "ranks share one GPU", gpu_id_step=0)

    module.ServerArgs.check_server_args = check


os.environ |= {
    "NCCL_HOSTID": str(os.getpid()),
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
startup.after_import([MODULE], share)
startup.next_sitecustomize(HERE)
