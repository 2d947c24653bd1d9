"""What this package changes in a release's arguments while these are resolved, up to 0.5.14. From
0.5.16 on nobody may assign to them once that is done."""

from __future__ import annotations

from typing import Any

from .arguments import OPT_IN, OPT_OUT


class Seen:
    """Server arguments with some other values, for a rule to read. Assignments go to the arguments
    themselves."""

    def __init__(self, server_args: Any, **others: Any) -> None:
        vars(self).update(_server_args=server_args, _others=others)

    def __getattr__(self, name: str) -> Any:
        others = vars(self)["_others"]
        return others[name] if name in others else getattr(vars(self)["_server_args"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_server_args"], name, value)


def switch_on(server_args: Any) -> None:
    """Ask for the prefill graph where the release leaves it off otherwise (up to 0.5.9)."""
    if hasattr(server_args, OPT_IN) and not hasattr(server_args, OPT_OUT):
        setattr(server_args, OPT_IN, True)


def piecewise_unasked(args: Any) -> bool:
    """Whether the piecewise graph is on (0.5.13, 0.5.14) by default: nobody asked for it, nor for
    another one."""
    if not hasattr(args, "cuda_graph_config"):
        asked = args.enforce_piecewise_cuda_graph or args.enable_breakable_cuda_graph
        return not args.disable_piecewise_cuda_graph and not asked
    locked = ("prefill", "backend") in args._cuda_graph_config_locked
    return args.cuda_graph_config.prefill.backend == "tc_piecewise" and not locked


def piecewise_off(args: Any) -> None:
    """Leave the piecewise graph off, on the releases of `piecewise_unasked`."""
    if hasattr(args, "cuda_graph_config"):
        args.cuda_graph_config.prefill.backend = "disabled"
    else:
        args.disable_piecewise_cuda_graph = True
