"""The tool's own order: no module imports from a floor above its own, as patchqueue/__init__.py lists them."""

from __future__ import annotations

import ast
from pathlib import Path

import patchqueue
import pytest

FOLDER = Path(patchqueue.__file__).parent
FLOORS = [floor.split() for floor in patchqueue.__doc__.partition("higher one:")[2].split("·")]
FLOOR = {module: number for number, floor in enumerate(FLOORS) for module in floor}


def imports(path: Path) -> set[str]:
    """The modules of this package that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.level == 1 or (node.module or "").startswith("patchqueue")):
            module = (node.module or "").removeprefix("patchqueue").lstrip(".")
            names = {module.split(".")[0]} if module else {alias.name for alias in node.names}
            found |= {name for name in names if (FOLDER / f"{name}.py").is_file()}  # the package's own constants are for all
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("patchqueue.")}
    return found


MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))


def floor_of(module: str) -> int:
    """A listed module's floor; a small one's is the lowest floor that its own imports allow."""
    if module in FLOOR:
        return FLOOR[module]
    return max([FLOOR[name] for name in imports(FOLDER / f"{module}.py") if name in FLOOR], default=0)


def test_the_list_names_modules_that_exist():
    assert FLOOR and FLOOR.keys() <= set(MODULES)


@pytest.mark.parametrize("module", [module for module in MODULES if module not in ("__init__", "__main__")])
def test_imports_only_downward(module):
    upward = {name: floor_of(name) for name in imports(FOLDER / f"{module}.py") if floor_of(name) > floor_of(module)}
    assert not upward, f"{module} is on floor {floor_of(module)}, and imports {upward}"
