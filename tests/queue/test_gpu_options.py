"""Options that several scripts of tests/gpu take from run.py: each of them knows them, with a port
of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "gpu"
PORTS = {
    "agree": 26000,
    "asleep": 27000,
    "first_answer": 31000,
    "images": 28000,
    "mixed_states": 32000,
    "next_turn": 30000,
    "ready": 30500,
    "saturated": 34000,
    "settings": 28000,
}


@pytest.fixture
def parsed(monkeypatch) -> Callable:
    """(script, words) -> its options."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)

    def parse(name: str, *words: str):
        script, words = importlib.import_module(name), ("--out", "results", *words)
        if hasattr(script, "QUESTION"):
            return importlib.import_module("solo")._options(script.QUESTION, "", words)
        return script._options(words)

    return parse


@pytest.mark.parametrize(("name", "first"), PORTS.items())
def test_a_script_takes_its_ports_from_where_it_is_told(parsed, name, first):
    assert parsed(name).port_base == first
    assert parsed(name, "--port-base", "45000").port_base == 45000


@pytest.mark.parametrize(
    "name",
    [
        "agree",
        "first_answer",
        "gain",
        "mixed_states",
        "next_turn",
        "ready",
        "saturated",
        "settings",
    ],
)
def test_a_script_with_two_trees_is_told_what_makes_the_other(parsed, name):
    assert parsed(name).untouched is None
    assert parsed(name, "--untouched", "own").untouched == Path("own")
