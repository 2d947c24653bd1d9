"""Changes to a release that runs on a torch it was not made for: on this host only, named in the
evidence, in no patch."""

import importlib.abc
import importlib.util
import sys
from typing import Any


def always_hit_shape_env(module: Any) -> None:
    """torch 2.11's FxGraphHashDetails reads this attribute of every shape environment; an empty
    dict changes nothing."""
    if not hasattr(module.AlwaysHitShapeEnv, "var_to_hint_override"):
        module.AlwaysHitShapeEnv.var_to_hint_override = {}


SHIMS = {
    "always_hit_shape_env": ("sglang.srt.compilation.compiler_interface", always_hit_shape_env)
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls each hook with its module, right after that module was imported."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = dict(hooks)

    def find_spec(self, name: Any, path: Any, target: Any = None) -> Any:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                hook(module)

            spec.loader.exec_module = exec_module
        return spec


def install(names: Any) -> None:
    hooks = dict(SHIMS[name] for name in names)
    if hooks:
        sys.meta_path.insert(0, AfterImport(hooks))
