"""The order of the tool: nothing imports upward, as the docstrings of their packages list it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tomlkit

ROOT = Path(__file__).resolve().parents[2]
FOLDER, ABOVE = ROOT / "scripts/patchqueue", ROOT / "lab/evidence"


def docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""


def floors(package: Path) -> list[list[str]]:
    """What a package's docstring lists, low to high."""
    return [
        floor.split()
        for floor in docstring(package)
        .partition("higher one:")[2]
        .strip()
        .partition("\n\n")[0]
        .split("·")
    ]


ROOMS = [room for floor in floors(FOLDER) for room in floor]
BELOW = [FOLDER / room for room in ROOMS]  # packages without packages of their own
BELOW += [ABOVE / name for name in ("commands", "pages")]
BELOW += [ROOT / "lab/bundle"]
CONTRACTS = {
    ".".join(contract["containers"]): [str(layer).split(" | ") for layer in contract["layers"]]
    for contract in tomlkit.parse((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}


@pytest.mark.parametrize("folder", [*BELOW, ABOVE], ids=lambda folder: folder.name)
def test_what_is_checked_is_what_the_docstring_says(folder):
    """`scripts/nox lint` holds imports to the contracts in pyproject.toml, with all modules."""
    name = ".".join(folder.relative_to(ROOT).parts[1:])
    assert CONTRACTS[name][::-1] == floors(folder)


def test_the_packages_order_is_checked_too():
    whole = CONTRACTS["patchqueue"][::-1]
    assert whole[0] == ["outcome", "hint"]  # below all of them
    assert [name for layer in whole[1:] for name in layer] == ROOMS


@pytest.mark.parametrize("folder", [*BELOW, ABOVE], ids=lambda folder: folder.name)
def test_a_room_itself_does_nothing(folder):
    body = ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body
    assert [*map(type, body)] == [ast.Expr], "a docstring, no re-exports"


def test_a_page_lists_the_packages():
    page = (FOLDER.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [f"| `{room}/` | {docstring(FOLDER / room).splitlines()[0]} |" for room in ROOMS]
    assert (
        "\n".join(
            [
                "<!-- packages -->",
                "| package | what it is for |",
                "| --- | --- |",
                *rows,
                "<!-- /packages -->",
            ]
        )
        in page
    )
