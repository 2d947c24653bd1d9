"""Empty modules in place of packages that were left out, so that `import sglang` works where nothing calls them."""

import importlib.abc
import importlib.machinery
import sys
import types


class Anything:
    """Takes any arguments and has any public name: good to be imported, subclassed or decorated with, not to be used."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "StructuralTag":  # sglang names it as a field's type in its own pydantic models
            import pydantic

            return type(name, (pydantic.BaseModel,), {"__module__": self.__name__})
        return type(name, (Anything,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = tuple(names)

    def find_spec(self, name, path, target=None):
        if any(name == known or name.startswith(f"{known}.") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def install(names):
    sys.meta_path.append(Finder(names))  # last: a package that is there after all wins
