"""An sglang that is installed somewhere: found without importing it, and known by its files, not by
what it says of itself."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.version import InvalidVersion, Version

from ..files import disk
from ..files.tree import differing, hash_python, is_part_of_tree, list_package
from ..hint import to_type
from ..outcome import Problem, Refused
from ..upstream.edits import PACKAGE, Edits, between, pristine, refuse_other
from ..upstream.pins import Pin, Pins
from ..upstream.release import described

UNKNOWN = "unknown-release"
NO_EDITS = Edits()
NAME_IT = (
    'name the folder that holds sglang/: python -c "import sysconfig;'
    " print(sysconfig.get_path('purelib'))\""
)


@dataclass(frozen=True)
class Installed:
    """One sglang in a folder of packages (or in the python/ of a checkout). info: its .dist-info,
    None where it has none; version: as that says, "" without; listing: of its files, by their names
    in git's layout."""

    site: Path
    info: Path | None
    version: str
    listing: dict[str, str]

    def __str__(self) -> str:
        return f"sglang {self.version or 'without a .dist-info'} in {self.site}"


@dataclass(frozen=True)
class Identity:
    """Which pinned release the files are, by its Python files. notes: what a reader should know
    about that. edits: what others edited."""

    pin: Pin
    notes: tuple[str, ...] = ()
    edits: Edits = NO_EDITS


def find(named: Path) -> Installed:
    """The sglang in the folder that a user named. Raises Refused, with the folder that was probably
    meant, where there is none."""
    where = str(named)
    if not named.is_dir():
        what = "is no folder"
        raise Refused.of("no-folder", where, what, NAME_IT)
    site = named.resolve()
    infos = sorted(site.glob("sglang-*.dist-info"))
    if len(infos) > 1:
        what = f"has {' and '.join(info.name for info in infos)}"
        step = (
            "`pip install --force-reinstall --no-deps` the release you want; delete what is"
            " left of the other"
        )
        raise Refused.of("two-installs", where, what, step)
    package = site / "sglang"
    if package.is_symlink():
        what = f"is a link to {package.resolve()}"
        step = _install_in(package.resolve().parent)
        raise Refused.of("linked-install", str(package), what, step)
    if not package.is_dir():
        raise Refused(_elsewhere(where, site, infos))
    links = next((path for path in package.rglob("*.py") if path.is_symlink()), None)
    if links:
        raise Refused(_linked(links, _version(infos[0] if infos else None)))
    info = infos[0] if infos else None
    return Installed(site, info, _version(info), list_package(site))


def _linked(file: Path, version: str) -> Problem:
    """A file that is a link: sglang alone is to be installed once more, and not all that it depends
    on."""
    step = (
        "`uv pip install --reinstall-package sglang --no-deps --link-mode=copy"
        f" sglang=={version or 'VERSION'}`"
    )
    what = "is a link, to a cache as it seems; a patched file would not stay apart from it"
    return Problem("linked-install", str(file), what, step)


def _install_in(folder: Path | str) -> str:
    return to_type("install", "--site-packages", folder)


def _elsewhere(where: str, site: Path, infos: list[Path]) -> Problem:
    """Why there is no sglang/ in the folder, and where it may be instead."""
    checkout = _editable(infos[0]) if infos else None
    if checkout:
        what = f"has an editable install; its files are those of the checkout {checkout}"
        step = (
            f"{_install_in(checkout)} patches that checkout; a branch in it is the cleaner way"
            " where it is your own"
        )
        return Problem("editable", where, what, step)
    if infos or any(site.glob("__editable__*sglang*")) or any(site.glob("sglang.egg-link")):
        what = "has an editable install, or what is left of one: no sglang/ is in it"
        return Problem("editable", where, what, _install_in("CHECKOUT/python"))
    if site.name == "sglang" and (site / "srt").is_dir():
        return Problem("no-sglang", where, "is the package itself", _install_in(site.parent))
    inside = [*site.glob("lib/python3*/*-packages/sglang"), *site.glob("python/sglang")]
    what = "has no sglang in it"
    step = _install_in(inside[0].parent) if inside else NAME_IT
    return Problem("no-sglang", where, what, step)


def _editable(info: Path) -> Path | None:
    """The folder that an editable install points to."""
    try:
        origin = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        return (
            Path(unquote(urlparse(origin["url"]).path)) if origin["dir_info"]["editable"] else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _version(info: Path | None) -> str:
    if info is None:
        return ""
    try:
        return str(
            message_from_string((info / "METADATA").read_text(encoding="utf-8"))["Version"] or ""
        )
    except PermissionError as error:
        raise Refused(disk.no_access(error, disk.Place(info, "run it as root"))) from None
    except (OSError, ValueError):
        raise Refused.of(
            "bad-metadata", str(info / "METADATA"), "cannot be read", "reinstall sglang"
        ) from None


def identify(found: Installed, pins: Pins) -> Identity:
    """The pinned release that these files are, without an edit of a Python file. Raises Refused
    where they are none, or where version and files contradict each other."""
    named = _named(found.version, pins)
    tree = hash_python(found.listing)
    pin = next((pin for pin in pins.all if pin.tree == tree), None)
    if pin is None:
        raise Refused(_unknown(found, pins))
    if named and named != pin:
        what = f"says {found.version}, but the files are those of {pin.tag}"
        step = f"`pip install --force-reinstall --no-deps sglang=={pin.version}`"
        raise Refused.of("bad-metadata", str(found.info), what, step)
    notes = _notes(found, pin, named)
    listed = _recorded(found)
    if listed and differing(listed, found.listing):
        return Identity(pin, notes, between(listed, found.listing, whole=True))
    note = f"its Python files are those of {pin.tag}; the other files are taken as they are"
    return Identity(pin, notes if listed else (*notes, note))


def recognise(
    found: Installed, pins: Pins, ours: Callable[[Pin], Collection[str]], release: str = ""
) -> Identity:
    """The pinned release that these files are, or are with edits of others.

    It is told by what it calls itself, or by the nearest tag of a checkout, or by `release`; and
    the files that the queue does not touch must be that release's, but for a few. What it looked
    like its RECORD says, else the release's own archive. ours: the files that the queue touches.
    Raises Refused where that is no pinned release, or cannot be told.
    """
    try:
        return identify(found, pins)
    except Refused as refusal:
        if refusal.problems[0].name != UNKNOWN:
            raise
        named = _named(found.version, pins)
        pin = pins.find(release) if release else named or _told(found, pins)
        pin = pin or _sibling(found.version, pins)
        if pin is None:
            raise
    listed = _recorded(found)
    whole = hash_python(listed) == pin.tree
    if not whole:
        archive = pristine(pin, found.site.parent).listing()
        listed = {path: each for path, each in archive.items() if path.startswith(PACKAGE)}
    edits = between(listed, found.listing, whole)
    refuse_other(str(found), pin, listed, edits, ours(pin))
    taken = f"sglang {found.version} is not pinned: taken as {pin.tag} with other files"
    notes = (taken,) if pin == _sibling(found.version, pins) else _notes(found, pin, named)
    return Identity(pin, notes, edits)


def _notes(found: Installed, pin: Pin, named: Pin | None) -> tuple[str, ...]:
    called = f"calls itself {found.version}" if found.version else "has no .dist-info"
    return () if named else (f"it {called}; its files are those of {pin.tag}",)


def _sibling(version: str, pins: Pins) -> Pin | None:
    """The pinned release of the same number with another post part: 0.5.12.post1 for 0.5.12. What
    differs then counts as edits of others."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    near = [] if parsed.is_devrelease else pins.near(parsed)
    return near[-1] if near else None


def _told(found: Installed, pins: Pins) -> Pin | None:
    """What the package's own source says, else the nearest tag of the checkout it lies in."""
    return _self_named(found, pins) or _named(described(found.site.parent)[0], pins)


def _named(version: str, pins: Pins) -> Pin | None:
    try:
        return pins.find(version)
    except Refused:
        return None


def _self_named(found: Installed, pins: Pins) -> Pin | None:
    """Without a .dist-info: the release that the package names in its own source."""
    for name in ("sglang/_version.py", "sglang/version.py"):
        file = found.site / name
        said = (
            re.search(
                r"(?m)^__version__ = (?:version = )?['\"]([^'\"]+)",
                file.read_text(encoding="utf-8", errors="replace"),
            )
            if not found.info and file.is_file()
            else None
        )
        if said and (pin := _named(said[1], pins)):
            return pin
    return None


def _unknown(found: Installed, pins: Pins) -> Problem:
    known = " ".join(pin.tag for pin in pins.all)
    what = (
        f"is {found.version or 'of no stated version'}, and its files are those of no pinned"
        f" release; pinned are {known}"
    )
    return Problem(UNKNOWN, str(found.site), what, _next_step(found.version, found.site, pins))


def _next_step(version: str, site: Path, pins: Pins) -> str:
    """A release can be pinned; a development version (0.0.0.dev1+g…, what images of git commits
    show) cannot."""
    try:
        parsed = Version(version)
        if not parsed.is_devrelease and not parsed.local:
            steps = f"{to_type('pin', version)}, then {to_type('rebase', version)}"
            if near := pins.near(parsed):
                steps = f"install sglang {near[-1].version}, which is pinned; or {steps}"
            return (
                f"{steps} carries the queue to it; {to_type('install', '--site-packages', site)}"
                " then takes it"
            )
    except InvalidVersion:
        pass
    again = to_type("install", "--site-packages", site, "--release v0.5.9")
    return (
        f"say which release it is made of, as in {again}; what fits a checkout of another commit,"
        f" {to_type('rebase', 'VERSION --from CHECKOUT')} says"
    )


def unlike_record(found: Installed) -> tuple[str, ...]:
    """The package's files, below the folder, that are not as RECORD lists them, or not listed;
    RECORD where it lists none."""
    listed = _recorded(found)
    if not listed:
        return (f"{found.info.name if found.info else '*.dist-info'}/RECORD",)
    return tuple(path.removeprefix("python/") for path in differing(listed, found.listing))


def _recorded(found: Installed) -> dict[str, str]:
    """The listing that the installer left in RECORD; empty where it left none (a checkout)."""
    record = found.info / "RECORD" if found.info else None
    if record is None or not record.is_file():
        return {}
    text = record.read_bytes().decode("utf-8", "surrogateescape")
    rows = csv.reader(io.StringIO(text, newline=""))  # a quoted name may hold a line end
    digests = {
        row[0]: row[1]
        for row in rows
        if len(row) == 3 and row[0].startswith("sglang/") and row[1].startswith("sha256=")
    }
    listed = {
        f"python/{name}": base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=").hex()
        for name, digest in digests.items()
    }
    return {name: digest for name, digest in listed.items() if is_part_of_tree(name)}
