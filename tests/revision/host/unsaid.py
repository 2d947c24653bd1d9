"""Stand-ins of which only what a test is about is said."""

import contextlib
from types import SimpleNamespace


def _none(self, name):
    if name.startswith("__"):
        raise AttributeError(name)


class Unsaid(SimpleNamespace):
    """What a release asks of it beyond what is given is None."""

    __getattr__ = _none


def bare(kind, **fields):
    """An object of the class `kind` without its __init__: `fields`, and None for all else."""
    words = {"__getattr__": _none, "__module__": kind.__module__}
    made = object.__new__(type(kind.__name__, (kind,), words))
    for name, value in fields.items():
        with contextlib.suppress(AttributeError):  # a property of this release
            setattr(made, name, value)
    return made
