"""Run by every Python that has this folder on PYTHONPATH: fill the gaps of a trimmed set of
packages, so that `import sglang` works where nothing calls what was left out."""

import importlib.abc
import importlib.machinery
import json
import pathlib
import site
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


_here = pathlib.Path(__file__).parent
_plan = json.loads((_here / "patchqueue_site.json").read_text())
sys.meta_path.append(Finder(_plan["stand_ins"]))  # last: a package that is there after all wins
# Python runs the .pth files of no folder that is on PYTHONPATH; CuTe's compiler needs its own.
site.addsitedir(str(_here.with_name("site")))
