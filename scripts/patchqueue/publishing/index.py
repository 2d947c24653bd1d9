"""A static package index: PEP 503's pages for pip and uv, and PEP 691's JSON beside them.

Each link has the wheel's sha256 (PEP 503), the Pythons that it is for (`data-requires-python`) and
the sha256 of the METADATA that lies beside it (PEP 658 and 714), so that resolving fetches no
wheel. The JSON is that of version 1.1 (PEP 700). A plain file server gives the pages; one that
answers `Accept` may give the JSON as application/vnd.pypi.simple.v1+json.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ..files import atomic
from ..outcome import Refused
from ..queue import released
from ..queue.released import Release, Wheel
from .wheelfile import BESIDE, describe

API = "1.1"
FOLDER = Path("simple")
STEP = "name a folder with wheels, as dist/release-2"


@dataclass(frozen=True)
class Linked:
    """A wheel in the index. url: absolute, or relative to the project's page; day: when it was
    uploaded, where that is known."""

    wheel: Wheel
    url: str
    day: datetime.date | None = None

    @property
    def project(self) -> str:
        return parse_wheel_filename(self.wheel.file)[0]

    @property
    def version(self) -> Version:
        return parse_wheel_filename(self.wheel.file)[1]


@dataclass(frozen=True)
class Index:
    """A finished index. folder: it holds simple/; wheels: how many; versions: sorted."""

    folder: Path
    wheels: int
    versions: tuple[str, ...]


def of_folder(folder: Path, url: str = "", out: Path | None = None) -> list[Linked]:
    """The wheels in a folder, each with its METADATA written beside it.

    url: where the folder is served, "" for links relative to `out`, where the index will be.
    Raises Refused where there is no wheel, or one that is broken.
    """
    if not folder.is_dir():
        raise Refused.of("no-folder", str(folder), "is no folder", STEP)
    paths = sorted(folder.glob("*.whl"))
    if not paths:
        raise Refused.of("no-wheel", str(folder), "holds no wheel", STEP)
    page = (out or folder) / FOLDER / "project"
    base = url.rstrip("/") or quote(Path(os.path.relpath(folder, page)).as_posix())
    linked = []
    for path in paths:
        described = describe(path)
        beside = path.with_name(f"{path.name}{BESIDE}")
        if not beside.is_file() or beside.read_bytes() != described.metadata:
            atomic.write(beside, described.metadata)
        linked.append(Linked(described.wheel, f"{base}/{quote(path.name)}"))
    return linked


def of_releases(cut: Sequence[Release], url: str) -> list[Linked]:
    """Every wheel of the queue's releases, where `url`/pcg-N/ holds the files of release N."""
    base = url.rstrip("/")
    return [
        Linked(wheel, f"{base}/{released.tag(one.release)}/{quote(wheel.file)}", one.day)
        for one in cut
        for each in one.revision
        for wheel in each.wheels
    ]


def write(linked: Iterable[Linked], out: Path) -> Index:
    """Write simple/ in `out`: a page and its JSON for the whole, and for each project."""
    files = sorted(linked, key=lambda each: (each.project, each.version, each.wheel.file))
    projects = sorted({each.project for each in files})
    for name, content in {
        "index.html": _root_page(projects),
        "index.json": _text({"meta": {"api-version": API}, "projects": _names(projects)}),
    }.items():
        atomic.write(out / FOLDER / name, content)
    for project in projects:
        own = [each for each in files if each.project == project]
        atomic.write(out / FOLDER / project / "index.html", _page(project, own))
        atomic.write(out / FOLDER / project / "index.json", _text(_json(project, own)))
    versions = tuple(str(version) for version in sorted({each.version for each in files}))
    return Index(out, len(files), versions)


def _names(projects: Iterable[str]) -> list[dict[str, str]]:
    return [{"name": project} for project in projects]


def _root_page(projects: Iterable[str]) -> bytes:
    return _html("Simple index", [f'<a href="{name}/">{name}</a>' for name in projects])


def _page(project: str, files: Iterable[Linked]) -> bytes:
    return _html(f"Links for {project}", [_link(each) for each in files])


def _link(each: Linked) -> str:
    wheel = each.wheel
    attributes = {"href": f"{each.url}#sha256={wheel.sha256}"}
    if wheel.python:
        attributes["data-requires-python"] = wheel.python
    # the second is the name that older clients know it by
    for name in ("data-core-metadata", "data-dist-info-metadata"):
        attributes[name] = f"sha256={wheel.metadata}"
    shown = " ".join(f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<a {shown}>{escape(wheel.file)}</a>"


def _html(title: str, links: Iterable[str]) -> bytes:
    head = (
        '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        '<meta name="pypi:repository-version" content="1.1">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n"
    )
    return (head + "".join(f"{link}<br>\n" for link in links) + "</body>\n</html>\n").encode()


def _json(project: str, files: Sequence[Linked]) -> dict[str, Any]:
    return {
        "meta": {"api-version": API},
        "name": project,
        "versions": [str(version) for version in sorted({each.version for each in files})],
        "files": [_file(each) for each in files],
    }


def _file(each: Linked) -> dict[str, Any]:
    wheel = each.wheel
    digest = {"sha256": wheel.metadata}
    return {
        "filename": wheel.file,
        "url": each.url,
        "hashes": {"sha256": wheel.sha256},
        "size": wheel.size,
        **({"requires-python": wheel.python} if wheel.python else {}),
        **({"upload-time": f"{each.day.isoformat()}T00:00:00Z"} if each.day else {}),
        "core-metadata": digest,
        "dist-info-metadata": digest,
    }


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
