"""Modules of tests/gpu for a test: their names are as plain as `run`, and gone again after it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """The module, and with it its neighbours, as a new process would have them."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return importlib.import_module(name)


def fixture(name: str, module: str = "") -> object:
    """A fixture that is this module, which may have another name."""

    @pytest.fixture(name=name)
    def loaded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        return load(monkeypatch, module or name)

    return loaded
