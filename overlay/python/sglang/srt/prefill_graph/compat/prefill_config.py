"""A release's setting for the prefill graph from 0.5.14 on (CudaGraphConfig, one object for both
phases), and the rules by which it turns the graph off."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from .arguments import Rule, rules_of
from .features import defines, has

_CONFIG = "sglang.srt.model_executor.cuda_graph_config"
_CONTEXT = "sglang.srt.runtime_context"
_SETUP = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"
# where the rules are from 0.5.19 on; before, they are methods of ServerArgs
_RULES = "sglang.srt.arg_groups.cuda_graph_hook"
# what turns each backend off: disable_<kind>_cudagraph_if_incompatible
_KINDS = {"breakable": "breakable", "tc_piecewise": "tc_piecewise", "full": "full_prefill"}
DISABLED = "disabled"


def applies() -> bool:
    """Whether the release has this setting."""
    return has(_CONFIG)


def prefill(server_args: Any) -> Any:
    """The resolved setting for prefill: its backend and its sizes (bs). From 0.5.17 on the
    process's own context alone has it."""
    if defines(_CONTEXT, "get_exec"):
        try:
            found = importlib.import_module(_CONTEXT).get_exec().graph.cuda_graph_config
        except (AttributeError, ValueError):  # not published, or not its place yet
            found = None
        if found is not None:
            return found.prefill
    return server_args.cuda_graph_config.prefill


def feature(server_args: Any) -> str:
    """Which prefill graph it is about."""
    settled = prefill(server_args)
    if settled.backend == "tc_piecewise":
        return f"piecewise CUDA graph, {compiler(server_args)} compiler"
    return "backend disabled" if settled.backend == DISABLED else f"{settled.backend} CUDA graph"


def compiler(server_args: Any) -> str:
    """What compiles the piecewise graph."""
    if applies():
        return getattr(prefill(server_args), "tc_compiler", "eager")
    return getattr(server_args, "piecewise_cuda_graph_compiler", "eager")


def why_disabled(server_args: Any) -> str | None:
    """Why the backend is `disabled`; None where it is another."""
    if prefill(server_args).backend != DISABLED:
        return None
    if ("prefill", "backend") in getattr(server_args, "_cuda_graph_config_locked", ()):
        given = "--cuda-graph-backend-prefill disabled, or by an argument that stands for it"
        return f"turned off by {given}"
    holding = rules_that_hold(server_args)
    if holding:
        return f"turned off by the release's own rule: {'; '.join(holding)}"
    return (
        "turned off by a rule of the release that cannot be checked from here: the log of the"
        " server's start names it"
    )


def rules_that_hold(server_args: Any) -> list[str]:
    """The names of the release's own rules that turn its default backend off, as far as they can be
    asked now."""
    config = importlib.import_module(_CONFIG)
    kind = _KINDS.get(config.default_cuda_graph_config().prefill.backend)
    name = f"disable_{kind}_cudagraph_if_incompatible"
    if has(_RULES):
        found = getattr(importlib.import_module(_RULES), name, None)
    else:
        found = getattr(type(server_args), f"_{name}", None)
    holding = []
    for rule, predicate in _rules(found, server_args) if inspect.isfunction(found) else ():
        with contextlib.suppress(Exception):  # what it asks is no longer there
            if predicate():
                holding.append(str(rule or "an unnamed one"))
    return holding


def refusals(runner: Any) -> list[Rule]:
    """The ways to leave a ModelRunner without its graph that hold now, in the function that
    captures it."""
    place = sys.modules.get(_SETUP)
    function = getattr(place, "capture_prefill_graph", None) or getattr(
        type(runner), "init_prefill_cuda_graph", None
    )
    if not inspect.isfunction(function):
        return []
    rules = rules_of(function, runner, lambda statement: isinstance(statement, ast.Return))
    return [rule for rule in rules if rule.own and rule.condition != "always"]


def _rules(function: Callable[..., Any], server_args: Any) -> list[tuple[str, Callable[[], Any]]]:
    """The list `rules` of the release's function, made by its own statements up to it: those behind
    turn the backend off."""
    try:
        whole = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return []
    made = whole.body[0]
    assert isinstance(made, ast.FunctionDef)
    makes = [ast.unparse(statement).startswith("rules = ") for statement in made.body]
    if True not in makes:
        return []
    made.body = [*made.body[: makes.index(True) + 1], *ast.parse("return rules").body]
    names = dict(function.__globals__)
    exec(compile(ast.fix_missing_locations(whole), "<rules>", "exec"), names)
    try:
        return names[made.name](server_args) or []
    except Exception:  # a statement before them needs the moment it was made for
        return []
