"""Where a pristine release comes from: one of its wheels, asked for by pip as the user has
configured it, checked, cached read-only, and read from there.

Only whole wheels are cached, under their own sha256, and every use looks whether they still are.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ..files.atomic import locked
from ..files.tree import SGLANG, hash_python, is_part_of_tree, sha256
from ..outcome import Outcome, Refused, disk_step
from .pins import Pin, Wheel

LOG = logging.getLogger(__name__)

# a backslash, or a part that is empty, . or ..
LEAVES_THE_TREE = re.compile(r"\\|(?:^|/)\.{0,2}(?:/|$)")
CACHE_README = """Upstream wheels, kept by the sglang patch queue under their own sha256.
Everything here can be deleted; it is fetched again when it is needed.
"""


# what pip says, in its warnings, of a package index that it cannot reach
UNREACHABLE = re.compile(
    r"\[Errno -?\d+\] [^\"')]+|(?:Read|Connection|connect)[^\"'(]* timed out|certificate verify"
    r" failed|Tunnel connection failed: [^\"')]+|[^ ]+ is not a trusted or secure host"
)
PIP = (sys.executable, "-m", "pip")
STEP = "check `pip config list`, or give a wheel: --from PATH"
PLACES = ("index-url", "extra-index-url", "find-links")  # of pip's settings
WHEEL = re.compile(r"sglang-[^/\"'#?<>]+(?:-any|linux[^-]*)\.whl")  # for any system, or for Linux
SECONDS = 20  # that an index may take to answer


def cache_folder() -> Path:
    """PATCHQUEUE_CACHE, else sglang-patch-queue/ in the user's cache folder (XDG)."""
    named = os.environ.get("PATCHQUEUE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named) if named else Path(home).expanduser() / "sglang-patch-queue"


@dataclass
class Archive:
    """A release's files in a wheel."""

    archive: Path

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.archive)
        except zipfile.BadZipFile as error:
            what = f"is no zip archive: {error}"
            step = "do not use this archive"
            raise Refused.of("bad-archive", self.name, what, step) from None

    @property
    def name(self) -> str:
        return self.archive.name

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        return members(self._zip, self.name)

    def read(self, path: str) -> bytes | None:
        """A file of the pristine tree, by its path in git's layout, or None."""
        member = self._members.get(path)
        return self._zip.read(member) if member else None

    def listing(self) -> dict[str, str]:
        """The tree's listing, read from the archive alone."""
        return {path: sha256(self._zip.read(member)) for path, member in self._members.items()}

    def contents(self) -> dict[str, bytes]:
        """Every file, by its path in git's layout, sorted."""
        return {path: self.read(path) or b"" for path in self.paths}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))


@dataclass
class Source(Archive):
    """A pinned release's pristine files, in a wheel that was checked."""

    pin: Pin
    sha256: str

    @property
    def origin(self) -> dict[str, str]:
        """The source, as a tree's record names it."""
        return {"kind": "wheel", "name": self.name, "sha256": self.sha256}

    def unpack(self, folder: Path) -> dict[str, str]:
        """Write the pristine tree into `folder`; its listing. Raises Refused if not pinned."""
        listing = {}
        for path, member in self._members.items():
            content, target = self._zip.read(member), folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            listing[path] = sha256(content)
        self.verify(listing)
        return listing

    def verify(self, listing: dict[str, str]) -> None:
        """Raise Refused unless the listing is what the pin says."""
        tree, pinned = hash_python(listing), self.pin.tree
        if tree != pinned:
            what = f"its tree is {tree}, pinned is {pinned}"
            step = "it is not the release; take another source"
            raise Refused.of(
                str(Outcome.TREE_MISMATCH), f"{self.pin.tag} from {self.name}", what, step
            )


def members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """The wheel's members in the tree, by path. Raises Refused for a link, and for a bad name."""
    by_path: dict[str, zipfile.ZipInfo] = {}

    def bad(what: str) -> Refused:
        return Refused.of("bad-member", name, what, "do not use this archive")

    for member in archive.infolist():
        path = f"python/{member.filename}"
        if LEAVES_THE_TREE.search(path.removesuffix("/")) or "\0" in member.orig_filename:
            raise bad(f"has a member called {member.orig_filename!r}")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise bad(f"{member.filename} is a link")
        if not path.startswith(SGLANG) or member.is_dir() or not is_part_of_tree(path):
            continue
        if path in by_path:
            raise bad(f"has two members called {member.filename!r}")
        by_path[path] = member
    return by_path


def fetch(pin: Pin, origin: Path | None) -> Source:
    """The release's pristine source: from `origin`, a wheel of it or a folder of wheels; else of
    the cache, else of the package index. Raises Refused."""
    cache, wheels = cache_folder(), _preferred(pin.wheels)
    if origin:
        inside = [origin / wheel.file for wheel in wheels if (origin / wheel.file).is_file()]
        if not inside and not origin.is_file():
            what = f"holds no wheel of {pin.tag}, as {wheels[0].file}"
            step = "name a wheel, or a folder of wheels"
            raise Refused.of("not-fetched", str(origin), what, step)
        with _workspace(cache) as space:
            copy = space / (inside[0] if inside else origin).name
            shutil.copyfile(inside[0] if inside else origin, copy)
            return _checked(pin, copy, cache)
    for wheel in wheels:
        if source := _cached(pin, wheel, cache):
            return source
    with _workspace(cache) as space:
        wheel = wheels[0]
        if source := _cached(pin, wheel, cache):  # another run may have it by now
            return source
        LOG.info(f"fetching {wheel.file}")
        done, file = download(str(pin.version), wheel.file, space), space / wheel.file
        if done.returncode or not file.is_file():
            step = disk_step(done.stderr) or STEP
            raise Refused.of("not-fetched", wheel.file, why(done, space), step)
        return _checked(pin, file, cache)


def is_cached(pin: Pin) -> bool:
    """Whether the cache has a wheel of the release. It is looked at when it is taken."""
    cache = cache_folder()
    return any(_entry(cache, wheel.sha256, wheel.file).is_file() for wheel in pin.wheels)


def _preferred(wheels: tuple[Wheel, ...]) -> list[Wheel]:
    """The wheels, best first: this machine's own has compiled parts that run here."""
    here = f"_{platform.machine()}."
    by = {wheel: (here not in wheel.file, "-cp311-" not in wheel.file) for wheel in wheels}
    return sorted(wheels, key=lambda wheel: (*by[wheel], wheel.file))


def _entry(cache: Path, digest: str, name: str) -> Path:
    return cache / "archives" / digest / name


def _cached(pin: Pin, wheel: Wheel, cache: Path) -> Source | None:
    """The wheel in the cache as it was kept. A damaged one is removed."""
    path = _entry(cache, wheel.sha256, wheel.file)
    if not path.is_file():
        return None
    if file_sha256(path) == wheel.sha256:
        return Source(path, pin, wheel.sha256)
    LOG.info(f"the cached {path.name} is damaged; it is fetched again")
    shutil.rmtree(path.parent, ignore_errors=True)
    return None


def _checked(pin: Pin, file: Path, cache: Path) -> Source:
    """The archive, moved into the cache, read-only. Raises Refused for no wheel of the pin."""
    digest = file_sha256(file)
    wheel = next((wheel for wheel in pin.wheels if wheel.sha256 == digest), None)
    if wheel is None:
        pinned = {wheel.file: wheel.sha256 for wheel in pin.wheels}
        what = f"its sha256 is {digest}, pinned is {pinned.get(file.name, 'another file name')}"
        step = "do not use it; see where your package index gets it from"
        raise Refused.of("wrong-sha256", file.name, what, step)
    checked = Source(file, pin, digest)
    checked.verify(checked.listing())
    path = _entry(cache, digest, wheel.file)
    path.parent.mkdir(parents=True, exist_ok=True)
    (cache / "README").write_text(CACHE_README)
    file.chmod(0o444)
    os.replace(file, path)
    return Source(path, pin, digest)


@contextmanager
def _workspace(cache: Path) -> Iterator[Path]:
    """A folder of this run's own in the cache; what a killed run left is removed."""
    with locked(cache / ".lock"):
        for left in cache.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as name:
            yield Path(name)


def why(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """Why pip had nothing, in a line, and where it asked. folder: one to run pip in."""
    said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[-1]
    if broken := UNREACHABLE.search(done.stderr):
        said = f"the package index cannot be reached: {broken[0].strip()}"
    return f"{said}; asked: {_asked(_places(folder))}"


def _asked(places: Iterable[tuple[str, str]]) -> str:
    """The places without passwords."""
    return ", ".join(re.sub("//[^/]*@", "//", place) for _, place in places)


def _places(folder: Path) -> list[tuple[str, str]]:
    """(setting, package index or folder of wheels) that pip asks."""
    said = _pip("config", "list", folder=folder).stdout
    configured = re.findall(r"(?m)^(global|download|:env:)\.([\w-]+)=('.*')$", said)
    configured.sort(key=lambda setting: ("global", "download", ":env:").index(setting[0]))
    settings = {name: ast.literal_eval(value) for _, name, value in configured}
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        settings = {"index-url": "", "find-links": settings.get("find-links", "nowhere")}
    settings = {"index-url": "https://pypi.org/simple", **settings}
    return [(name, place) for name in PLACES for place in settings.get(name, "").split()]


def download(version: str, file: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Ask pip, as the user has configured it, for just this wheel of sglang."""
    tag = sorted(parse_wheel_filename(file)[3], key=str)[0]
    python = tag.interpreter[2:] if len(tag.interpreter) > 3 else "3.11"
    words = ["--python-version", python, "--platform", tag.platform]
    if tag.abi != "none":
        words += ["--implementation", tag.interpreter[:2], "--abi", tag.abi]
    words += ["--no-deps", "--progress-bar", "off", "-q", "-d", str(folder), f"sglang=={version}"]
    return _pip("download", "--no-input", "--only-binary=:all:", *words, folder=folder)


def published(folder: Path) -> list[str]:
    """Every version of sglang of which the package index has a Linux wheel, for Python 3.12. Raises
    Refused where pip cannot say. folder: as for `why`."""
    words = ["--python-version", "3.12", "--platform", "manylinux_2_34_x86_64", "--json"]
    words += ["--no-input", "--only-binary=:all:"]
    done = _pip("index", "versions", "sglang", *words, folder=folder)
    try:
        return [str(version) for version in json.loads(done.stdout)["versions"]]
    except (ValueError, KeyError):
        what = why(done, folder)
        raise Refused.of("not-fetched", "the versions of sglang", what, STEP) from None


def offered(version: Version, folder: Path) -> list[str]:
    """The names of the release's wheels for Linux, where pip looks. Raises Refused without any."""
    names, broken, places = set[str](), "", _places(folder)
    for setting, place in places:
        folder = Path(place.removeprefix("file://"))
        if "://" not in place or folder.is_dir():
            names |= {path.name for path in folder.glob("*.whl")}
            continue
        url = place if setting == "find-links" else f"{place.rstrip('/')}/sglang/"
        try:
            names |= {unquote(name) for name in WHEEL.findall(_page(url))}
        except OSError as error:
            broken = f"the package index cannot be reached: {getattr(error, 'reason', error)}; "
    of_linux = sorted(filter(WHEEL.fullmatch, names))
    if wheels := [name for name in of_linux if name.split("-")[1] == str(version)]:
        return wheels
    what = f"{broken or 'no wheel of it is available; '}asked: {_asked(places)}"
    raise Refused.of("not-fetched", f"sglang {version}", what, STEP)


def _page(url: str) -> str:
    parts = urlsplit(url)
    request = Request(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
    if parts.username:  # urllib sends none of its own accord
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        token = base64.b64encode(pair.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    with urlopen(request, timeout=SECONDS) as answer:
        return str(answer.read().decode("utf-8", "replace"))


def _pip(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """pip's own five tries take eight seconds where there is no network: two."""
    variables = {"PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **os.environ}
    how: dict[str, Any] = {"capture_output": True, "text": True, "env": variables}
    return subprocess.run([*PIP, *words], cwd=folder, **how)


def file_sha256(path: Path) -> str:
    """The sha256 of a file on disk, 64 hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
