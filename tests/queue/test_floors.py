"""The order of the tool: nothing imports upward, as the docstrings of their packages list it."""

from __future__ import annotations

import ast
from pathlib import Path

import patchqueue
import pytest

FOLDER = Path(patchqueue.__file__).parent
MODULES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix().replace("/", ".") for path in FOLDER.rglob("*.py") if path.parent.name != "hostsite")


def docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""


def floors(package: Path) -> list[list[str]]:
    """What a package's docstring lists, low to high."""
    return [floor.split() for floor in docstring(package).partition("higher one:")[2].strip().partition("\n\n")[0].split("·")]


ROOMS = [room for floor in floors(FOLDER) for room in floor]
PLACE = {f"{room}.{module}": (number, floor) for number, room in enumerate(ROOMS) for floor, names in enumerate(floors(FOLDER / room)) for module in names}
PLACE |= {room: (number, len(PLACE)) for number, room in enumerate(ROOMS)}  # a whole room, taken by name: above all that is in it
PLACE |= {"hint": (-1, 0), "outcome": (-1, 0), "__main__": (len(ROOMS), 0)}


def imports(module: str) -> set[str]:
    """The modules and rooms of the tool that a module imports, wherever in it: a late import still is one."""
    package = ["patchqueue", *module.split(".")[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            found |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    words = [name.split(".")[1:3] for name in found if name.startswith("patchqueue.")]
    return {".".join(pair) if ".".join(pair) in PLACE else pair[0] for pair in words} & PLACE.keys()  # the package's own constants are for all


def test_each_room_lists_its_modules_and_no_others():
    there = {name for name in MODULES if "." in name and not name.endswith(".__init__")}
    assert not there ^ {name for name in PLACE if "." in name}
    assert not set(ROOMS) ^ {name.split(".")[0] for name in there}
    assert set(MODULES) - there - {f"{room}.__init__" for room in ROOMS} == {"__init__", "__main__", "hint", "outcome"}


@pytest.mark.parametrize("module", sorted(PLACE.keys() - set(ROOMS)))
def test_imports_only_downward(module):
    upward = {name: PLACE[name] for name in imports(module) if PLACE[name] >= PLACE[module]}
    assert not upward, f"{module} is in room and on floor {PLACE[module]}, and imports {upward}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_itself_does_nothing(room):
    assert [type(node) for node in ast.parse((FOLDER / room / "__init__.py").read_text(encoding="utf-8")).body] == [ast.Expr], "a docstring, no re-exports"


def test_a_page_lists_the_packages():
    page = (FOLDER.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [f"| `{room}/` | {docstring(FOLDER / room).splitlines()[0]} |" for room in ROOMS]
    assert "\n".join(["<!-- packages -->", "| package | what it is for |", "| --- | --- |", *rows, "<!-- /packages -->"]) in page
