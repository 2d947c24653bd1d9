"""Repack a release's official wheel with the queue on it: `sglang-0.5.9+pcg.2-….whl`.

The patched files come from work/<tag>/, which apply has proven; everything else, compiled parts
included, comes byte for byte from the wheel that the pin names. Of the .dist-info, METADATA and
RECORD are changed, and entry_points.txt from 0.5.11 on (notice.py). The same input gives the same
bytes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from packaging.utils import parse_wheel_filename

from .. import RELEASE
from ..applying.apply import apply
from ..files import atomic
from ..files import tree as trees
from ..files.tree import LAID, LISTING, is_part_of_tree, sha256
from ..outcome import Refused, to_type
from ..queue.series import PROVENANCE as TREE_PROVENANCE
from ..upstream import source
from ..upstream.pins import Pin, Wheel
from ..upstream.release import Edits
from . import notice

LABEL = "pcg"  # prefill CUDA graphs: what a local version of this queue is called
PROVENANCE = "patch_queue.json"  # in the wheel's .dist-info/: the work tree's own record
VERSION_FILE = trees.GENERATED.removeprefix("python/")
# where releases up to 0.5.6 say it, which were not made with setuptools-scm
PLAIN_VERSION_FILE = "sglang/version.py"
FILE_MODE, PROGRAM_MODE = 0o644, 0o755


@dataclass(frozen=True)
class Target:
    """Where a wheel is to run. python: "3.12"; machine: as platform.machine() names it,
    "x86_64"."""

    python: str
    machine: str

    @classmethod
    def here(cls) -> Target:
        return cls(f"{sys.version_info.major}.{sys.version_info.minor}", os.uname().machine)

    def takes(self, wheel: Wheel) -> bool:
        pythons = (f"cp{self.python.replace('.', '')}", "py3")
        return any(
            tag.interpreter in pythons
            and (tag.platform == "any" or tag.platform.endswith(f"_{self.machine}"))
            for tag in parse_wheel_filename(wheel.file)[3]
        )

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


@dataclass(frozen=True)
class Built:
    """A finished wheel. version: as pip shows it; sha256: of the file, 64 hex digits; record: the
    tree's provenance.

    changes: its members that differ from upstream's; upstream: the wheel it was made of; replaced:
    a wheel of the same name had other content.
    """

    pin: Pin
    path: Path
    version: str
    sha256: str
    origin: str
    record: dict[str, Any]
    changes: Edits
    upstream: Path
    replaced: bool


def local_version(pin: Pin, only: str = "") -> str:
    """The version that a patched release shows: "0.5.9+pcg.2", with a profile "0.5.9+pcg.2.rl"."""
    return f"{pin.version}+{LABEL}.{RELEASE}{only and f'.{only}'}"


def build(
    root: Path, pin: Pin, target: Target | Wheel, origin: str | None, out: Path, only: str = ""
) -> Built:
    """Apply the queue, then repack a wheel of the pin, or the official one for a target, into the
    folder `out`, whole or not at all.

    origin, only: as for apply; a wheel or a folder of wheels (a git checkout has no wheel to
    repack). Raises Refused where the release has no wheel for `target`, or where apply refuses.
    """
    wheel = target if isinstance(target, Wheel) else next(filter(target.takes, pin.wheels), None)
    if wheel is None:
        built_for = {"-".join(each.file.removesuffix(".whl").split("-")[2:]) for each in pin.wheels}
        what = f"has no wheel for {target}; its wheels are for {' '.join(sorted(built_for))}"
        step = to_type("build", f"{pin.tag} --python 3.12 --machine x86_64")
        raise Refused.of("no-wheel", pin.tag, what, step)
    archive = source.fetch(replace(pin, wheels=(wheel,)), origin, wheel_only=True)
    if archive.kind != "wheel":
        step = "give a wheel or a folder of wheels, or leave --from out"
        raise Refused.of("no-wheel", pin.tag, f"{origin} has no wheel to repack", step)
    report = apply(root, pin, None if origin is None else str(archive.archive), only=only)
    with zipfile.ZipFile(archive.archive) as released:
        files = [member for member in released.infolist() if not member.is_dir()]
        members = {member.filename: released.read(member) for member in files}
    record = report.record | {"source": archive.origin}  # apply takes this host's wheel
    address = notice.repository(root)
    version = local_version(pin, only)
    made = repack(members, patched_files(report.path), pin, record, address, only)
    name, _, tags = wheel.file.split("-", 2)
    path = out / f"{name}-{version}-{tags}"
    before = source.file_sha256(path) if path.is_file() else ""
    atomic.write(path, _zip(made, pin.released))
    digest, changes = source.file_sha256(path), notice.changes(members, made)
    replaced, upstream = before not in ("", digest), archive.archive
    return Built(pin, path, version, digest, wheel.file, record, changes, upstream, replaced)


def patched_files(tree: Path) -> dict[str, bytes]:
    """The work tree's files under their names in a wheel ("sglang/…"); what belongs to no wheel
    (test/) is left out."""
    names = [name for name in trees.list_folder(tree) if name.startswith("python/sglang/")]
    names += [LAID] if (tree / LAID).is_file() else []
    return {name.removeprefix("python/"): (tree / name).read_bytes() for name in names}


def _listing(members: Mapping[str, bytes]) -> dict[str, str]:
    """The listing (see files/tree.py) of a wheel's members."""
    paths = {f"python/{name}": content for name, content in members.items()}
    return {path: sha256(content) for path, content in paths.items() if is_part_of_tree(path)}


def _kept(upstream: Mapping[str, bytes], old: str, new: str) -> dict[str, bytes]:
    """The members of upstream's wheel that no tree has, with .dist-info renamed from old to new."""
    return {
        f"{new}{name.removeprefix(old)}" if name.startswith(old) else name: content
        for name, content in upstream.items()
        if not name.startswith("sglang/") or not is_part_of_tree(name)
    }


def repack(
    upstream: Mapping[str, bytes],
    patched: Mapping[str, bytes],
    pin: Pin,
    record: dict[str, Any],
    address: str = "",
    only: str = "",
) -> dict[str, bytes]:
    """The members of the new wheel, RECORD last. `record`, the tree's provenance, goes into its
    .dist-info/. address: the queue's repository, for questions; "" where it has none. only: the
    profile of the tree, "" for every patch.

    Raises Refused where the patched files are not the tree that the record names.
    """
    if trees.hash_python(_listing(patched)) != record["tree"]["after"]:
        what, step = "is not the tree that its record names", f"{pin.tag} --discard"
        raise Refused.of("tree-mismatch", f"work/{pin.tag}", what, to_type("apply", step))
    version = local_version(pin, only)
    old, new = f"sglang-{pin.version}.dist-info/", f"sglang-{version}.dist-info/"
    made = _kept(upstream, old, new) | dict(patched)
    name = VERSION_FILE if VERSION_FILE in made else PLAIN_VERSION_FILE
    stamped = stamp_module(name, made.get(name, b"").decode(), str(pin.version), version)
    made[name] = stamped.encode()
    listing = trees.own_listing(_listing(made))
    if TREE_PROVENANCE in listing:  # the overlay's package reads it, for `--verify`
        made[LISTING.removeprefix("python/")] = trees.to_sha256sum(listing)
    points = notice.entry_points(made.get(f"{new}{notice.ENTRY_POINTS}"), made)
    if points is not None:
        made[f"{new}{notice.ENTRY_POINTS}"] = points
    changed = notice.changes(upstream, made)
    text = notice.text(version, record["source"]["name"], changed, address)
    has_licenses = any(each.startswith(f"{new}licenses/") for each in made)
    made[f"{new}{'licenses/' if has_licenses else ''}{notice.FILE}"] = text.encode()
    metadata = stamp_metadata(made[f"{new}METADATA"].decode(), str(pin.version), version)
    made[f"{new}METADATA"] = notice.metadata(metadata, RELEASE, address).encode()
    made[f"{new}{notice.BILL}"] = notice.bill_of_materials(version, record).encode()
    made[f"{new}{PROVENANCE}"] = f"{json.dumps(record | {'release': RELEASE}, indent=1)}\n".encode()
    del made[f"{new}RECORD"]
    made = dict(sorted(made.items()))
    return made | {f"{new}RECORD": record_of(made, f"{new}RECORD")}


def _stamped(text: str, pattern: str, new: str, where: str, fault: str) -> str:
    """The text with the one match of a pattern replaced. Raises Refused, with the fault, where it
    has no match or several."""
    stamped, count = re.subn(f"(?m){pattern}", new, text)
    if count != 1:
        name = "bad-metadata" if where == "METADATA" else "bad-version-file"
        raise Refused.of(name, where, fault, "do not use this wheel")
    return stamped


def stamp_metadata(text: str, public: str, local: str) -> str:
    """METADATA with the local version in its Version field."""
    head, blank, body = text.partition("\n\n")
    pattern = rf"^Version: {re.escape(public)}$"
    fault = f"names version {public} not once"
    return _stamped(head, pattern, f"Version: {local}", "METADATA", fault) + blank + body


def stamp_module(name: str, text: str, public: str, local: str) -> str:
    """The module that says a wheel's version, with the local version. name: VERSION_FILE, as
    setuptools-scm writes it, in the text and in the tuple; or PLAIN_VERSION_FILE."""
    version = re.escape(public)
    if name == VERSION_FILE:
        fault = f"does not set version {public} in the form that setuptools-scm writes"
        label = local.partition("+")[2]
        stamps = {
            rf"^(__version__ = version = '){version}'$": rf"\g<1>{local}'",
            r"^(__version_tuple__ = version_tuple = \(.*?),?\)$": rf"\g<1>, '{label}')",
        }
    else:
        fault = f"does not set __version__ to {public}, and the wheel has no {VERSION_FILE}"
        stamps = {rf"^(__version__ = [\"']){version}([\"'])$": rf"\g<1>{local}\g<2>"}
    for pattern, new in stamps.items():
        text = _stamped(text, pattern, new, name, fault)
    return text


def record_of(members: Mapping[str, bytes], own_name: str) -> bytes:
    """A wheel's RECORD: every member with its sha256 (url-safe base64, no padding) and size in
    bytes; its own without."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, content in members.items():
        writer.writerow(record_row(name, content))
    writer.writerow([own_name, "", ""])
    return out.getvalue().encode()


def record_row(name: str, content: bytes) -> list[str]:
    """One file's row of a RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(content))]


def _zip(members: Mapping[str, bytes], day: date) -> bytes:
    """A wheel. day: when the members say that they were written, so that the same queue always
    gives the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name, (day.year, day.month, day.day, 0, 0, 0))
            # Unix, whatever made it: the permissions below count there only
            member.create_system = 3
            mode = PROGRAM_MODE if name.endswith(".so") else FILE_MODE
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content, compresslevel=6)
    return out.getvalue()
