"""Empty modules in place of packages that were left out, so that `import sglang` works where
nothing calls them."""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Anything:
    """Takes any arguments and has any public name: good to be imported, subclassed or decorated
    with, not to be used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Anything()

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIn(types.ModuleType):
    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "StructuralTag":  # sglang names it as a field's type in its own pydantic models
            import pydantic

            return type(name, (pydantic.BaseModel,), {"__module__": self.__name__})
        return type(name, (Anything,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Any) -> None:
        self.names = tuple(names)

    def find_spec(self, name: Any, path: Any, target: Any = None) -> Any:
        if any(name == known or name.startswith(f"{known}.") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def install(names: Any) -> None:
    sys.meta_path.append(Finder(names))  # last: a package that is there after all wins
