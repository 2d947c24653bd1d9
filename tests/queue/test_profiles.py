"""Each profile of `--only`, on each release: it applies, in memory, and uses no name that only
patches outside of the profile bring."""

from __future__ import annotations

import builtins
import functools
import re
import symtable
from collections.abc import Iterable, Mapping

import pytest
from test_overlay import PINS, added, queue

from patchqueue.applying.selection import Selection
from patchqueue.queue import imports
from patchqueue.queue.header import PROFILES
from patchqueue.upstream import source

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
def test_a_profile_applies_and_has_all_that_it_uses(pin, profile, real_cache, monkeypatch):
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(real_cache))
    if not source.is_cached(pin):
        pytest.skip(f"{pin.version} is not in the cache")
    read = source.fetch(pin, None).read
    part = Selection(queue().only(profile), pin)
    replayed = part.replay(read)
    assert part.patches and not replayed.problems
    files = {path: text for path, text in replayed.files.items() if path.endswith(".py")}
    whole, names = queue().select(pin.version), {patch.name for patch in part.patches}
    released = {one.path: text for each in whole for one in each.files if (text := read(one.path))}
    own = [text for patch in whole if patch.name in names for text in added(patch)]
    others = [text for patch in whole if patch.name not in names for text in added(patch)]
    assert problems(own, others, files, released) == set()
    assert imports.closure(files, queue().overlay) <= files.keys()


@pytest.mark.parametrize(
    ("line", "lacking"),
    [
        ("a.recount()", {"recount"}),
        ("a.count(limit=1)", {"limit"}),
        ("unheard()", {"unheard"}),
    ],
)
def test_what_another_profile_brings_is_missing(line, lacking):
    released = {"python/sglang/a.py": b"def count(): pass\n", "python/sglang/b.py": b"import a\n"}
    files = {"python/sglang/b.py": f"import a\n{line}\n".encode()}
    others = ["def recount(self):\n", "    limit: int = 1\n"]
    assert problems([line], others, files, released) == lacking
