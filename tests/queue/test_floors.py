"""The order of the tool and of the overlay: no module imports from a floor above its own, as their __init__.py lists them."""

from __future__ import annotations

import ast
import re
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


OVERLAY = FOLDER.parents[1] / "overlay/python/sglang/srt/prefill_graph"
ROWS = re.findall(r"(?m)^    (\w+(?:, \w+)*)  ", ast.get_docstring(ast.parse((OVERLAY / "__init__.py").read_text(encoding="utf-8")), clean=False))
OVERLAY_FLOOR = {module: number for number, row in enumerate(ROWS) for module in row.split(", ")}


@pytest.mark.parametrize("path", sorted(OVERLAY.glob("*.py")), ids=lambda path: path.stem)
def test_the_overlay_imports_only_downward(path):
    """Wherever in a module: a late import still is one."""
    froms = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom) and node.level == 1]
    found = {name for node in froms for name in ([node.module] if node.module else [alias.name for alias in node.names])}
    assert path.stem == "__init__" or path.stem in OVERLAY_FLOOR
    assert not {name for name in found if OVERLAY_FLOOR[name] > OVERLAY_FLOOR.get(path.stem, -1)}
