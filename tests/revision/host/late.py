"""Imports of the release's own modules at the top of a test file.

Every test file is collected on every release, and no release has every module:

    with late.modules():
        from sglang.srt.prefill_graph.captured import layers, tables

The names are modules; what a module has is looked up where a test uses it.
"""

import builtins
import contextlib
import importlib
import importlib.util
from types import ModuleType
from unittest import mock


class Late(ModuleType):
    """A module that is imported at its first use; ImportError there if the release lacks it."""

    def __repr__(self):
        return f"<late module {self.__name__}>"

    @property
    def __dict__(self):
        return vars(importlib.import_module(self.__name__))

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name, value):
        setattr(importlib.import_module(self.__name__), name, value)

    def __delattr__(self, name):
        delattr(importlib.import_module(self.__name__), name)


class _Package:
    """What `from PACKAGE import …` looks its names up in."""

    def __init__(self, name, *_):
        self.name = name

    def __getattr__(self, child):
        return Late(f"{self.name}.{child}")


def modules():
    """Let `from PACKAGE import MODULE` bind a Late, for as long as the context lasts."""
    return mock.patch.object(builtins, "__import__", _Package)


def has(name):
    """Whether the release has the module `name`, which is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def first(*names):
    """The first of these modules that the release has. Raises ImportError where it has none."""
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ImportError(f"the release has none of {', '.join(names)}")


def import_all(names):
    """Import every Late among the values of `names`. One that cannot be imported, as the release
    has no such module, or as the module wants a GPU, says so where it is used."""
    for value in names.values():
        if isinstance(value, Late):
            with contextlib.suppress(Exception):
                importlib.import_module(value.__name__)
