"""An sglang that is installed somewhere: found without importing it, and known by its files, not by
what it says of itself."""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from email import message_from_string
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ..files import tree as trees
from ..files.tree import PREFIX, SGLANG, hash_python, is_part_of_tree
from ..outcome import Outcome, Problem, Refused, system_problem, to_type
from ..upstream.pins import Pin, Pins
from ..upstream.release import Edits, between, nearest_tag, refuse_other
from ..upstream.source import fetch

NO_EDITS = Edits()
NAME_IT = (
    'name the folder that holds sglang/: python -c "import sysconfig;'
    " print(sysconfig.get_path('purelib'))\""
)
ASK = (
    "import importlib.util as util; spec = util.find_spec('sglang');"
    " print(next(iter(spec.submodule_search_locations)) if spec else '')"
)
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")  # name the folder of an activated environment
SECONDS = 60  # that a Python may take to answer
OWN_VERSION = r"(?m)^__version__ = (?:version = )?['\"]([^'\"]+)"


@dataclass(frozen=True)
class Installed:
    """sglang in a folder of packages (or python/ of a checkout). info: its .dist-info, if any."""

    site: Path
    info: Path | None
    version: str

    @cached_property
    def listing(self) -> dict[str, str]:
        """Its files by their names in git's layout, as they are when they are first asked for."""
        return trees.list_package(self.site)

    def __str__(self) -> str:
        return f"sglang {self.version or 'without a .dist-info'} in {self.site}"

    def record_rows(self) -> dict[str, list[str]]:
        """RECORD's rows by the files that they are about; none where there is no RECORD."""
        record = self.info / "RECORD" if self.info else None
        if record is None or not record.is_file():
            return {}
        text = record.read_bytes().decode("utf-8", "surrogateescape")
        # a quoted name may hold a line end
        return {row[0]: row for row in csv.reader(io.StringIO(text, newline="")) if row}

    def recorded(self) -> dict[str, str]:
        """The listing that the installer left in RECORD; empty where it left none (a checkout)."""
        return {
            PREFIX + name: base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=").hex()
            for name, digest, *_ in (row for row in self.record_rows().values() if len(row) == 3)
            if name.startswith("sglang/") and digest.startswith("sha256=")
            if is_part_of_tree(PREFIX + name)
        }


@dataclass(frozen=True)
class Identity:
    """The pinned release that files are. notes: what to know; edits: of others."""

    pin: Pin
    notes: tuple[str, ...] = ()
    edits: Edits = NO_EDITS


@dataclass(frozen=True)
class Report:
    """The outcome for an installed sglang. changed, added: numbers of files; notes: what to know;
    others, before: files that others edited since the install, and before it."""

    site: Path
    outcome: Outcome
    record: dict[str, Any]
    changed: int = 0
    added: int = 0
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def read(site: Path, path: str) -> bytes | None:
    """A file of the package by its path in git's layout, or None where there is none."""
    file = site / path.removeprefix(PREFIX)
    return file.read_bytes() if path.startswith(SGLANG) and file.is_file() else None


def site_packages(python: str = "") -> tuple[Path, str]:
    """(the folder that holds sglang/, the Python that imports it from there): of `python`, else of
    the activated environment, else of the Pythons on PATH. Raises Refused for none and for
    several."""
    tried = [python] if python else _pythons()
    own = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    how: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/", "env": own}
    sites: dict[Path, str] = {}
    for each in tried:
        try:
            package = subprocess.run([each, "-c", ASK], timeout=SECONDS, **how).stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            why = getattr(error, "strerror", None) or "does not answer"
            step = "name the Python of the environment that has sglang"
            raise Refused.of("no-python", each, f"cannot be run: {why}", step) from None
        if package:
            sites.setdefault(Path(package).resolve().parent, each)
    if not sites:
        what = f"no sglang is installed for {' or '.join(tried) or 'any Python on PATH'}"
        step = (
            "activate its environment, or name its Python or its folder:"
            f" {to_type('install', '--python PATH')}, {_install_in('DIR')}"
        )
        raise Refused.of("no-sglang", "install", what, step)
    if len(sites) > 1:
        what = "several are installed: " + ", ".join(map(str, sites))
        steps = (to_type("install", "--python", each) for each in sites.values())
        raise Refused.of("several-sglang", "install", what, f"name one: {' or '.join(steps)}")
    return next(iter(sites.items()))


def _pythons() -> list[str]:
    """The activated environment's; else all on PATH, less the one that runs this."""
    for name in ACTIVE:
        python = Path(os.environ.get(name) or "/nowhere") / "bin/python"
        if python.is_file():
            return [str(python)]
    own = os.path.realpath(Path(sys.prefix) / "bin")
    on_path = os.environ.get("PATH", "").split(os.pathsep)
    folders = [folder for folder in on_path if os.path.realpath(folder) != own]
    names = [(name, folder) for folder in folders for name in ("python", "python3")]
    pythons = (shutil.which(name, path=folder) for name, folder in names)
    return list(dict.fromkeys(filter(None, pythons)))


def find(named: Path) -> Installed:
    """The sglang in the folder that a user named. Raises Refused, with the one probably meant."""
    where = str(named)
    if not named.is_dir():
        raise Refused.of("no-folder", where, "there is no such folder", NAME_IT)
    site = named.resolve()
    infos = sorted(site.glob("sglang-*.dist-info"))
    if len(infos) > 1:
        what = f"has {' and '.join(info.name for info in infos)}"
        step = (
            "`pip install --force-reinstall --no-deps` the release you want; delete what is"
            " left of the other"
        )
        raise Refused.of("two-installs", where, what, step)
    package, info = site / "sglang", infos[0] if infos else None
    if package.is_symlink():
        target = package.resolve()
        step = _install_in(target.parent)
        raise Refused.of("linked-install", str(package), f"is a link to {target}", step)
    if not package.is_dir():
        raise Refused(_elsewhere(where, site, info))
    version = _version(info)
    if link := next((path for path in package.rglob("*.py") if path.is_symlink()), None):
        what = "is a link, to a cache as it seems; a patched file would not stay apart from it"
        step = (  # sglang alone, and not all that it depends on
            "`uv pip install --reinstall-package sglang --no-deps --link-mode=copy"
            f" sglang=={version or 'VERSION'}`"
        )
        raise Refused.of("linked-install", str(link), what, step)
    return Installed(site, info, version)


def _install_in(*words: Path | str) -> str:
    return to_type("install", "--site-packages", *words)


def _elsewhere(where: str, site: Path, info: Path | None) -> Problem:
    """Why there is no sglang/ in the folder, and where it may be instead."""
    if info or any(site.glob("__editable__*sglang*")):
        what = "has an editable install, or what is left of one: no sglang/ is in it"
        return Problem("editable", where, what, _install_in("CHECKOUT/python"))
    inside = [*site.glob("lib/python3*/*-packages/sglang"), *site.glob("python/sglang")]
    inside += [site] if site.name == "sglang" else []  # the package itself
    step = _install_in(inside[0].parent) if inside else NAME_IT
    return Problem("no-sglang", where, "has no sglang in it", step)


def _version(info: Path | None) -> str:
    if info is None:
        return ""
    file = info / "METADATA"
    try:
        return str(message_from_string(file.read_text(encoding="utf-8"))["Version"] or "")
    except PermissionError as error:
        raise Refused(system_problem(error, [info])) from None
    except (OSError, ValueError):
        step = "reinstall sglang"
        raise Refused.of("bad-metadata", str(file), "cannot be read", step) from None


def recognise(
    here: Installed, pins: Pins, ours: Callable[[Pin], Collection[str]], release: str = ""
) -> Identity:
    """The pinned release that these files are, or are with edits of others. Files that the queue
    does not touch must be that release's, but for a few.

    release: what a user says it is made of; ours: the files that the queue touches. Raises Refused
    where it is no pinned release, or cannot be found out.
    """
    listed, named = here.recorded(), _named(here.version, pins)
    if pin := unedited(here, pins):
        if named and named != pin:
            what = f"says {here.version}, but the files are those of {pin.tag}"
            step = f"`pip install --force-reinstall --no-deps sglang=={pin.version}`"
            raise Refused.of("bad-metadata", str(here.info), what, step)
        notes = _notes(here, pin, pins)
        if listed:
            return Identity(pin, notes, between(listed, here.listing, whole=True))
        note = f"its Python files are those of {pin.tag}; the other files are taken as they are"
        return Identity(pin, (*notes, note))
    sibling = _sibling(here.version, pins)
    pin = (pins.find(release) if release else named) or _stated(here, pins) or sibling
    if pin is None:
        raise Refused(_unknown(here, pins))
    whole = hash_python(listed) == pin.tree
    if not whole:
        listed = trees.sglang_part(fetch(pin, None).listing())
    edits = between(listed, here.listing, whole)
    refuse_other(str(here), pin, listed, edits, ours(pin))
    taken = f"sglang {here.version} is not pinned: taken as {pin.tag} with other files"
    is_sibling = not named and pin == sibling
    return Identity(pin, (taken,) if is_sibling else _notes(here, pin, pins), edits)


def unedited(here: Installed, pins: Pins) -> Pin | None:
    """The pinned release whose Python files these are, without an edit."""
    return pins.with_tree(hash_python(here.listing))


def _stated(here: Installed, pins: Pins) -> Pin | None:
    """The pinned release that the package's own source names, else the checkout's nearest tag."""
    versions = []
    for name in ("_version", "version") if here.info is None else ():
        text = (read(here.site, f"{SGLANG}{name}.py") or b"").decode("utf-8", "replace")
        versions += re.findall(OWN_VERSION, text)[:1]
    versions.append(nearest_tag(here.site.parent))
    return next(filter(None, (_named(version, pins) for version in versions)), None)


def _notes(here: Installed, pin: Pin, pins: Pins) -> tuple[str, ...]:
    called = f"calls itself {here.version}" if here.version else "has no .dist-info"
    named = _named(here.version, pins)
    return () if named else (f"it {called}; its files are those of {pin.tag}",)


def _named(version: str, pins: Pins) -> Pin | None:
    try:
        return pins.find(version)
    except Refused:
        return None


def _sibling(version: str, pins: Pins) -> Pin | None:
    """The pinned release of the same number with another post part: 0.5.12.post1 for 0.5.12."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    near = [] if parsed.is_devrelease else pins.near(parsed)
    return near[-1] if near else None


def _unknown(here: Installed, pins: Pins) -> Problem:
    """The problem of files that are no pinned release's."""
    known = " ".join(pin.tag for pin in pins.all)
    what = (
        f"is {here.version or 'of no stated version'}, and its files are those of no pinned"
        f" release; pinned are {known}"
    )
    step = (
        f"say which release it is made of, as in {_install_in(here.site, '--release v0.5.9')};"
        f" {to_type('rebase', 'RELEASE --from CHECKOUT')} says what fits another one"
    )
    return Problem("unknown-release", str(here.site), what, step)
