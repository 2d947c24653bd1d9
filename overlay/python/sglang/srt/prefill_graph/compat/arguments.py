"""A release's server arguments for the prefill graph up to 0.5.13: its switch (enable_… up to
0.5.9, then disable_…), its sizes, and the rules that leave the graph off."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

OPT_IN, OPT_OUT = "enable_piecewise_cuda_graph", "disable_piecewise_cuda_graph"


def feature(server_args: Any) -> str:
    """Which prefill graph these arguments are about."""
    if getattr(server_args, "enable_breakable_cuda_graph", False):
        return "breakable CUDA graph"
    return (
        f"piecewise CUDA graph, {getattr(server_args, 'piecewise_cuda_graph_compiler', 'eager')}"
        " compiler"
    )


def sizes_to_capture(server_args: Any) -> tuple[int, ...]:
    """The token counts that the arguments ask to capture; empty where all are over a limit."""
    return tuple(getattr(server_args, "piecewise_cuda_graph_tokens", None) or ())


def sizes_that_fit(runner: Any) -> list[int]:
    """The sizes to capture that a batch of this server can have, ascending. A placeholder request
    longer than the context has no place in req_to_token."""
    limit = largest_batch(runner)
    return sorted({size for size in sizes_to_capture(runner.server_args) if size <= limit})


def has_default_sizes(server_args: Any) -> bool:
    """Whether the sizes are those that the release makes of the largest one (up to 0.5.13)."""
    own = getattr(server_args, "_generate_piecewise_cuda_graph_tokens", None)
    if own is None or getattr(server_args, "piecewise_cuda_graph_max_tokens", None) is None:
        return False
    return list(sizes_to_capture(server_args)) == own()


def largest_batch(runner: Any) -> int:
    """Tokens of the largest prefill that the context and the cache allow."""
    return min(runner.model_config.context_len, runner.max_total_num_tokens)


def no_size_fits(runner: Any) -> str:
    """The reason where none of the sizes asked for can be captured."""
    asked = list(sizes_to_capture(runner.server_args))
    return (
        f"no capture size fits: asked for were {asked}, the context and the cache allow"
        f" {largest_batch(runner)} tokens"
    )


@dataclass(frozen=True)
class Rule:
    """A condition under which the release leaves the graph off. holds: None where it cannot be
    evaluated from here. own: the same without what the release asked before it."""

    where: str
    condition: str
    holds: bool | None
    own: bool | None = None

    def __str__(self) -> str:
        return f"{self.condition} ({self.where})"


@dataclass(frozen=True)
class Switch:
    """The server argument that decides. opt_in: off unless asked for. on: what it says now."""

    flag: str
    opt_in: bool
    on: bool


def switch(server_args: Any) -> Switch | None:
    """The release's switch for the prefill graph, or None where it has neither known one."""
    if hasattr(server_args, OPT_IN):
        return Switch("--enable-piecewise-cuda-graph", True, bool(getattr(server_args, OPT_IN)))
    if hasattr(server_args, OPT_OUT):
        return Switch("--disable-piecewise-cuda-graph", False, not getattr(server_args, OPT_OUT))
    return None


def switch_rules(server_args: Any, seen: Any = None) -> list[Rule]:
    """The conditions in the source of ServerArgs over what turns its switch off, evaluated on the
    arguments as they are now, or as they are `seen`."""
    effects = f".{OPT_IN} = False", f".{OPT_OUT} = True"

    def turns_off(statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Assign) and ast.unparse(statement).endswith(effects)

    methods = [value for value in vars(type(server_args)).values() if inspect.isfunction(value)]
    methods = [one for one in methods if {OPT_IN, OPT_OUT} & {*one.__code__.co_names}]
    return [rule for method in methods for rule in rules_of(method, server_args, turns_off, seen)]


def argument_rules(server_args: Any, seen: Any = None) -> list[str]:
    """Why other arguments turn the prefill graph off: the switch, or rules about arguments alone.
    Rules about the model are left to the report. seen: see switch_rules."""
    now = switch(server_args)
    if now is None or now.on or now.opt_in:
        return []
    rules = switch_rules(server_args, seen)
    holding = [rule for rule in rules if rule.holds]
    if not holding:
        unknown = [str(rule) for rule in rules if rule.holds is None]
        return [" or ".join([f"{now.flag} is given", *unknown])]
    return [str(rule) for rule in holding if "get_model_config" not in rule.condition]


def wants_graph(runner: Any) -> bool:
    """Whether a model runner is to have a prefill graph (up to 0.5.13), as far as arguments and
    rules go. From 0.5.11 on a draft has none until its worker asks for it (0.5.13)."""
    now = switch(runner.server_args)
    if now is None or not now.on or any(rule.holds for rule in runner_rules(runner)):
        return False
    set_up = getattr(type(runner), "init_piecewise_cuda_graphs", None)
    skips_drafts = set_up is not None and "is_draft_worker" in set_up.__code__.co_names
    return not (skips_drafts and runner.is_draft_worker)


def runner_rules(runner: Any) -> list[Rule]:
    """The model runner's own rules (`return False` in can_run_piecewise_cuda_graph, up to
    0.5.9)."""
    method = getattr(type(runner), "can_run_piecewise_cuda_graph", None)

    def says_no(statement: ast.stmt) -> bool:
        return ast.unparse(statement) == "return False"

    return rules_of(method, runner, says_no) if inspect.isfunction(method) else []


def rules_of(
    method: Callable, owner: Any, is_effect: Callable[[ast.stmt], bool], seen: Any = None
) -> list[Rule]:
    """The conditions on each way through a function of the release to a statement that is_effect;
    none without its source. owner: its `self` or `model_runner`; other local names are unknown.
    seen: see switch_rules."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    except (OSError, SyntaxError, IndexError):
        return []
    subject = owner if seen is None else seen
    names = {**method.__globals__, "self": subject, "model_runner": subject}
    where, found = f"{type(owner).__name__}.{method.__name__}", []
    for passed, around in _paths(tree.body, (), (), is_effect):
        text = " and ".join(ast.unparse(condition) for condition in around) or "always"
        holds = _all_hold((*passed, *around), names)
        found.append(Rule(where, text, holds, _all_hold(around, names)))
    return found


def _paths(
    body: list[ast.stmt],
    passed: tuple[ast.expr, ...],
    around: tuple[ast.expr, ...],
    is_effect: Callable[[ast.stmt], bool],
) -> Iterator[tuple[tuple[ast.expr, ...], tuple[ast.expr, ...]]]:
    """The conditions on each way through `body` to a statement that is_effect: of the returns
    before it, and around it."""
    for statement in body:
        if is_effect(statement):
            yield passed, around
        elif isinstance(statement, ast.If):
            otherwise = ast.UnaryOp(ast.Not(), statement.test)
            yield from _paths(statement.body, passed, (*around, statement.test), is_effect)
            yield from _paths(statement.orelse, passed, (*around, otherwise), is_effect)
            if isinstance(statement.body[-1], (ast.Return, ast.Raise)):
                passed = (*passed, otherwise)


def _all_hold(conditions: tuple[ast.expr, ...], names: dict[str, Any]) -> bool | None:
    verdicts = [_holds(condition, names) for condition in conditions]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _holds(condition: ast.expr, names: dict[str, Any]) -> bool | None:
    expression = ast.fix_missing_locations(ast.Expression(condition))
    try:
        return bool(eval(compile(expression, "<rule>", "eval"), names))
    except Exception:  # a local name, or a check that needs the moment it was made for
        return None
