"""The overlay package: its rooms in order, what patches call of them, and what a release gets of
it. Each profile of `--only`, on each release, uses no name that only other patches bring."""

import ast
import builtins
import functools
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from fakes import ROOT
from packaging.version import Version

from patchqueue.applying.apply import load_queue
from patchqueue.applying.selection import Selection
from patchqueue.queue import series
from patchqueue.queue.header import PROFILES
from patchqueue.queue.patchfile import Patch
from patchqueue.upstream import pins

PACKAGE = series.PACKAGE.removeprefix("python/").strip("/").replace("/", ".")
FOLDER = ROOT / "overlay" / series.PACKAGE
DATA = f"{series.PACKAGE}kernels/expert_tables/"
PINS = pins.load(ROOT).all


queue = functools.cache(lambda: load_queue(ROOT))


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def rows(path: Path) -> list[list[str]]:
    """The names that a docstring lists in its first table, low to high, by row."""
    table = docstring(path).partition(":\n\n")[2].partition("\n\n")[0]
    return [names.split(", ") for names in re.findall(r"(?m)^    (\w+(?:, \w+)*)  ", table)]


ROOMS = [room for row in rows(FOLDER / "__init__.py") for room in row]
PLACE = {
    f"{room}/{module}.py": (number, floor)
    for number, room in enumerate(ROOMS)
    for floor, row in enumerate(rows(FOLDER / room / "__init__.py"))
    for module in row
}
PLACE |= {"__main__.py": (len(ROOMS), 0)}


def test_each_room_lists_its_modules_and_no_others():
    there = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py")}
    packages = {"__init__.py", *(f"{room}/__init__.py" for room in ROOMS)}
    assert there == PLACE.keys() | packages


@pytest.mark.parametrize("module", sorted(PLACE))
def test_imports_only_downward(module):
    """Wherever in a module: a late import still is one."""
    found = series.imports_of(series.PACKAGE + module, (FOLDER / module).read_bytes())
    wanted = {path.removeprefix(series.PACKAGE) for path in found} & PLACE.keys()
    assert not {name: PLACE[name] for name in wanted if PLACE[name] >= PLACE[module]}


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_a_room_itself_imports_nothing(room):
    """It is loaded with each of its modules, on releases that lack the others."""
    body = ast.parse((FOLDER / room / "__init__.py").read_text(encoding="utf-8")).body
    assert [type(node) for node in body] == [ast.Expr]


def test_models_without_delta_nets_import_no_module_of_theirs():
    """A GPU's results hold while the files that a run imported are the same."""
    for name in ("captured/layers.py", "captured/extend_hook.py", "captured/own_runner.py"):
        body = ast.parse((FOLDER / name).read_text(encoding="utf-8")).body
        nodes = (node for node in body if isinstance(node, ast.ImportFrom))
        seen = {one.name for node in nodes for one in node.names}
        assert not seen & {"gdn", "flashinfer_rule", "gated_delta", "delta_states"}


def added(patch: Patch) -> Iterator[str]:
    """The lines that a patch adds to each file, as one text."""
    for file in patch.files:
        lines = (line for hunk in file.hunks for line in hunk.lines)
        yield "".join(line[1:] for line in lines if line[0] == "+")


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.tag)
def test_a_release_gets_no_file_that_nothing_reaches(pin):
    """Reached: imported by added lines, by the command or by these; or data that these name."""
    selected = queue().select(pin.version)
    laid = queue().overlay_for(selected)
    reached = {series.PACKAGE + "__main__.py"}.union(*map(series.imported, selected))
    modules = series.closure(reached, queue().overlay)
    texts = b"".join(queue().overlay[path] for path in modules).decode()
    data = {path for path in laid if path.startswith(DATA) and '"expert_tables"' in texts}
    assert laid and not laid.keys() - modules - data


def assigned(text: str) -> list[str]:
    """The lines that give an attribute of upstream's ServerArgs a value, by whatever name."""
    holder = r"(?:(?:\w+\.)*(?:server_args|args)|get_(?:global_)?server_args\(\))"
    found = [
        rf"^\s*{holder}(?:\.\w+)+(?:\[[^\]]*\])*\s*(?::[^=]+)?[-+*/|&]?=(?!=)",
        rf"\b(?:setattr|delattr|__setattr__)\(\s*{holder}\s*,",
        rf"\b{holder}\.(?:__setattr__|__dict__)\b",
        rf"\bvars\(\s*{holder}\s*\)\s*[\[.]",
        # another name, under which this would not see it
        r"^\s*\w+\s*=\s*(?:\w+\.)*server_args\s*$",
    ]
    lines = text.splitlines()
    return [line.strip() for line in lines if any(re.search(one, line) for one in found)]


LATER = [pin for pin in PINS if pin.version >= Version("0.5.16")]


@pytest.mark.parametrize("pin", LATER, ids=lambda pin: pin.tag)
def test_nobody_assigns_to_resolved_server_args(pin):
    """Of these releases override() alone may: ServerArgs.__setattr__."""
    selected = queue().select(pin.version)
    texts = {path: content.decode() for path, content in queue().overlay_for(selected).items()}
    for patch in selected:
        texts |= {f"{patch.name} {n}": text for n, text in enumerate(added(patch))}
    assert not {name: lines for name, text in texts.items() if (lines := assigned(text))}


def test_an_assignment_to_server_args_is_seen():
    """On earlier releases, which have no such rule, the overlay has some."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}
    seen = {name for name, text in texts.items() if assigned(text)}
    assert {"resolving", "runner", "nsa", "sparse"} <= seen


# --- profiles

BUILT_IN = {"__file__", "__name__", *dir(builtins)}
Files = Mapping[str, bytes]  # path in the tree -> content
# a function, a class, an attribute, a variable or a typed parameter with a default
DEFINED = re.compile(r"\b(?:def|class) (\w+)|\b(\w+)(?:: [^=\n]+?)? = ")


def defined(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for pair in DEFINED.findall(text) for name in pair if name}


@functools.cache
def undefined(content: bytes) -> frozenset[str]:
    """Global names that a module reads and never binds."""
    module = symtable.symtable(content.decode(), "module", "exec")
    scopes = [module]
    for scope in scopes:
        scopes += scope.get_children()
    symbols = [symbol for scope in scopes for symbol in scope.get_symbols()]
    read = {one.get_name() for one in symbols if one.is_global() and one.is_referenced()}
    bound = {one.get_name() for one in module.get_symbols() if one.is_local()}
    return frozenset(read - bound - BUILT_IN)


def problems(own: list[str], others: list[str], files: Files, released: Files) -> set[str]:
    """Names that a profile uses and lacks. own, others: the lines that its patches, and all others,
    add; files: what it changes or adds; released: the release's files that the queue changes."""
    lines = [*own, *(text.decode() for path, text in files.items() if path not in released)]
    brought = defined(others) - defined(lines)
    known = re.findall(r"\w+", " ".join([*files, *map(bytes.decode, released.values())]))
    asked = re.sub(r"import_module\([^)]*\)\.\w+", "", "\n".join(lines))  # of a release's module
    lacking = brought.intersection(re.findall(r"[.( ](\w+)", asked)) - {*known}
    new = (undefined(text) - undefined(released.get(path, b"")) for path, text in files.items())
    return lacking.union(*new)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.tag)
def test_a_profile_applies_and_has_all_that_it_uses(pin, profile, real_release):
    read = real_release(pin).read
    part = Selection(queue().only(profile), pin)
    replayed = part.replay(read)
    assert part.patches and not replayed.problems
    files = {path: text for path, text in replayed.files.items() if path.endswith(".py")}
    whole, names = queue().select(pin.version), {patch.name for patch in part.patches}
    released = {one.path: text for each in whole for one in each.files if (text := read(one.path))}
    own = [text for patch in whole if patch.name in names for text in added(patch)]
    others = [text for patch in whole if patch.name not in names for text in added(patch)]
    assert problems(own, others, files, released) == set()
    assert series.closure(files, queue().overlay) <= files.keys()


@pytest.mark.parametrize(
    ("line", "lacking"),
    [("a.recount()", {"recount"}), ("a.count(limit=1)", {"limit"}), ("unheard()", {"unheard"})],
)
def test_what_another_profile_brings_is_missing(line, lacking):
    released = {"python/sglang/a.py": b"def count(): pass\n", "python/sglang/b.py": b"import a\n"}
    files = {"python/sglang/b.py": f"import a\n{line}\n".encode()}
    others = ["def recount(self):\n", "    limit: int = 1\n"]
    assert problems([line], others, files, released) == lacking
