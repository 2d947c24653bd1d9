"""Repack a release's official wheel with the queue on it: `sglang-0.5.9+pcg.2-….whl`.

What the queue leaves alone comes byte for byte from the wheel that the pin names; the same input
gives the same bytes. The wheel says that it is changed, where, and who answers for it: the Apache
License 2.0 asks for notices in section 4(b). In upstream's list of plugins (entry_points.txt, from
0.5.11 on) it names the queue, whose plugin logs one line.
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
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace
from packaging.utils import parse_wheel_filename

from . import RELEASE, REPOSITORY
from .applying.apply import load_queue, patched
from .applying.selection import select
from .files import atomic
from .files import tree as trees
from .files.tree import LISTING, PREFIX, is_part_of_tree, sha256
from .outcome import Refused, to_type
from .queue.series import OVERLAY_PATCH
from .queue.series import PROVENANCE as TREE_PROVENANCE
from .upstream import source
from .upstream.pins import Pin, Wheel
from .upstream.release import Edits

LABEL = "pcg"  # prefill CUDA graphs: what a local version of this queue is called
PROVENANCE = "patch_queue.json"  # in the wheel's .dist-info/: the work tree's own record
VERSION_FILE = trees.GENERATED.removeprefix("python/")
# where releases up to 0.5.6 say it, which were not made with setuptools-scm
PLAIN_VERSION_FILE = "sglang/version.py"
METADATA = "METADATA"
FILE_MODE, PROGRAM_MODE = 0o644, 0o755
NOTICE = "NOTICE.patch-queue.txt"  # upstream's wheels have no NOTICE; one that comes is kept
BILL = "sboms/patchqueue.cdx.json"
ENTRY_POINTS = "entry_points.txt"
PLUGIN_GROUP, PLUGIN_NAME = "sglang.srt.plugins", "prefill_graph_queue"
PLUGIN_CALL = "sglang.srt.prefill_graph.report.provenance:log_plugin"
PLUGIN_MODULE = "sglang/srt/prefill_graph/report/provenance.py"
PLUGIN_LIST = "sglang/srt/plugins/__init__.py"  # the release's, from 0.5.11 on
# labels of Project-URL that ask for reports: a patched wheel's are none of upstream's business
REPORTS = ("bugtracker", "bugs", "bugreports", "issues", "issuetracker", "tracker", "support")
INFO = re.compile(r"^sglang-[^/]*\.dist-info/")


@dataclass(frozen=True)
class Target:
    """Where a wheel is to run. machine: as platform.machine() names it."""

    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine: str = os.uname().machine

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
    """A finished wheel. record: the tree's provenance; changes: its members that differ from
    upstream's; upstream: the wheel it was made of."""

    pin: Pin
    path: Path
    version: str
    sha256: str
    origin: str
    record: dict[str, Any]
    changes: Edits
    upstream: Path


def local_version(pin: Pin, only: str = "") -> str:
    """The version that a patched release shows: "0.5.9+pcg.2", with a profile "0.5.9+pcg.2.rl"."""
    return f"{pin.version}+{LABEL}.{RELEASE}{only and f'.{only}'}"


def build(
    root: Path, pin: Pin, target: Target | Wheel, origin: Path | None, out: Path, only: str = ""
) -> Built:
    """Repack a wheel of the pin, or the official one for a target, into the folder `out`. only: the
    profile, "" for every patch. Raises Refused."""
    wheel = target if isinstance(target, Wheel) else next(filter(target.takes, pin.wheels), None)
    if wheel is None:
        built_for = {"-".join(each.file.removesuffix(".whl").split("-")[2:]) for each in pin.wheels}
        what = f"has no wheel for {target}; its wheels are for {' '.join(sorted(built_for))}"
        step = to_type("build", f"{pin.tag} --python 3.12 --machine x86_64")
        raise Refused.of("no-wheel", pin.tag, what, step)
    archive = source.fetch(replace(pin, wheels=(wheel,)), origin)
    planned = select(load_queue(root, only), pin).plan(archive.read, archive.origin)
    record, _, beside = patched(archive.listing(), archive.read, planned)
    with zipfile.ZipFile(archive.archive) as released:
        files = [member for member in released.infolist() if not member.is_dir()]
        members = {member.filename: released.read(member) for member in files}
    own = archive.contents() | planned.files | beside
    own = {path.removeprefix(PREFIX): content for path, content in own.items()}
    made, version = repack(members, own, pin, record, only), local_version(pin, only)
    name, _, tags = wheel.file.split("-", 2)
    path = out / f"{name}-{version}-{tags}"
    atomic.write(path, _zip(made, pin.released))
    digest, changes = source.file_sha256(path), changed_members(members, made)
    return Built(pin, path, version, digest, wheel.file, record, changes, archive.archive)


def repack(
    upstream: Mapping[str, bytes],
    own: Mapping[str, bytes],
    pin: Pin,
    record: dict[str, Any],
    only: str = "",
) -> dict[str, bytes]:
    """The members of the new wheel, RECORD last. own: the patched tree's files, by their names in a
    wheel; record: its provenance."""
    public, version = str(pin.version), local_version(pin, only)
    info = f"sglang-{version}.dist-info/"
    made = dict(own) | {
        INFO.sub(info, name): content
        for name, content in upstream.items()
        if not name.startswith("sglang/") or not is_part_of_tree(name)
    }
    version_file = VERSION_FILE if VERSION_FILE in made else PLAIN_VERSION_FILE
    made[version_file] = stamp(version_file, made.get(version_file, b""), public, version)
    paths = {f"python/{name}": content for name, content in made.items()}
    every = {path: sha256(content) for path, content in paths.items() if is_part_of_tree(path)}
    listing = trees.own_listing(every)
    if TREE_PROVENANCE in listing:  # the overlay's package reads it, for `--verify`
        made[LISTING.removeprefix("python/")] = trees.to_sha256sum(listing)
    if (points := entry_points(made.get(f"{info}{ENTRY_POINTS}"), made)) is not None:
        made[f"{info}{ENTRY_POINTS}"] = points
    text = notice(version, record["source"]["name"], changed_members(upstream, made))
    has_licenses = any(name.startswith(f"{info}licenses/") for name in made)
    made[f"{info}{'licenses/' if has_licenses else ''}{NOTICE}"] = text.encode()
    metadata = stamp(METADATA, made[f"{info}{METADATA}"], public, version)
    made[f"{info}{METADATA}"] = patched_metadata(metadata.decode(), RELEASE).encode()
    made[f"{info}{BILL}"] = bill_of_materials(version, record).encode()
    provenance = json.dumps(record | {"release": RELEASE}, indent=1)
    made[f"{info}{PROVENANCE}"] = f"{provenance}\n".encode()
    made.pop(record_name := f"{info}RECORD")
    made = dict(sorted(made.items()))
    return made | {record_name: record_of(made, record_name)}


def stamp(name: str, content: bytes, public: str, local: str) -> bytes:
    """A file that says a wheel's version, with the local version. Raises Refused."""
    version, label = re.escape(public), local.partition("+")[2]
    patterns = {
        METADATA: {rf"^Version: {version}$": f"Version: {local}"},
        VERSION_FILE: {  # in the form that setuptools-scm writes
            rf"^(__version__ = version = '){version}'$": rf"\g<1>{local}'",
            r"^(__version_tuple__ = version_tuple = \(.*?),?\)$": rf"\g<1>, '{label}')",
        },
        PLAIN_VERSION_FILE: {rf"^(__version__ = [\"']){version}([\"'])$": rf"\g<1>{local}\g<2>"},
    }
    text, blank, body = content.decode(), "", ""
    if name == METADATA:
        text, blank, body = text.partition("\n\n")
    for pattern, new in patterns[name].items():
        text, count = re.subn(f"(?m){pattern}", new, text)
        if count != 1:
            problem = "bad-metadata" if name == METADATA else "bad-version-file"
            what = f"does not say version {public} once, in the form of the known releases"
            raise Refused.of(problem, name, what, "do not use this wheel")
    return (text + blank + body).encode()


def changed_members(upstream: Mapping[str, bytes], made: Mapping[str, bytes]) -> Edits:
    """The members in which two wheels differ, but for RECORD."""
    old, new = (
        {INFO.sub(".dist-info/", name): content for name, content in wheel.items()}
        for wheel in (upstream, made)
    )
    changed = {name for name in old.keys() & new if old[name] != new[name]}
    parts = changed - {".dist-info/RECORD"}, new.keys() - old, old.keys() - new
    return Edits(*(tuple(sorted(names)) for names in parts))


def record_of(members: Mapping[str, bytes], own_name: str) -> bytes:
    """A wheel's RECORD: every member with sha256 and size; its own without."""
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
    """A wheel whose members are of this day: the same queue gives the same bytes."""
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


def notice(version: str, wheel: str, changes: Edits) -> str:
    """The notice of the wheel `version`, which was made of upstream's file `wheel`."""
    public, _, local = version.partition("+")
    _, number, *profile = local.split(".")
    part = f", profile {profile[0]}" if profile else ""
    where = f" ({REPOSITORY})" if REPOSITORY else ""
    text = f"""\
This is a changed sglang: version {version}, not the sglang project's own {public}.

The sglang patch queue{where} made it of upstream's wheel
{wheel}. It is release {number} of the queue{part}.
The sglang project neither made nor checked it. Report what goes wrong to the queue{where}.

Both are under the Apache License 2.0. As its section 4(b) asks, the files that
were changed are listed here. patch_queue.json names every patch.
"""
    parts = {"Changed": changes.changed, "Added": changes.added, "Removed": changes.removed}
    for title, names in parts.items():
        if own := [f"  {name}\n" for name in names if name.startswith("sglang/")]:
            text += f"\n{title}:\n{''.join(own)}"
    return text


def bill_of_materials(version: str, tree: Mapping[str, Any]) -> str:
    """The wheel's SBOM (CycloneDX 1.6, PEP 770): upstream's wheel, and each patch."""
    public, source = version.partition("+")[0], tree["source"]
    upstream = _component(public) | {"hashes": [{"alg": "SHA-256", "content": source["sha256"]}]}
    patches = [
        {"type": "unofficial", "resolves": [{"type": "defect", "id": patch["name"]}]}
        for patch in tree["patches"]
        if patch["name"] != OVERLAY_PATCH
    ]
    pedigree = {"ancestors": [upstream], "patches": patches}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(version) | {"pedigree": pedigree}},
    }
    return json.dumps(bill, indent=1) + "\n"


def _component(version: str) -> dict[str, Any]:
    return {
        "type": "library",
        "name": "sglang",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:pypi/sglang@{quote(version)}",
    }


def patched_metadata(content: str, release: int) -> str:
    """METADATA that says the wheel is patched, and sends reports to the queue."""
    head, blank, body = content.partition("\n\n")
    lines = list[str]()
    for line in head.split("\n"):
        name, _, value = line.partition(": ")
        label, _, url = value.partition(", ")
        if name == "Home-page":
            lines.append(f"Project-URL: Upstream Homepage, {value}")
        elif name != "Project-URL":
            lines.append(line)
        elif re.sub("[^a-z0-9]", "", label.lower()) not in REPORTS:
            lines.append(f"Project-URL: Upstream {label}, {url}")
    own = {"Homepage": REPOSITORY, "Bug Tracker": f"{REPOSITORY}/issues"} if REPOSITORY else {}
    at = _last(lines, "Summary: ")
    summary = f": {lines.pop(at).removeprefix('Summary: ')}" if at is not None else ""
    at = (_last(lines, "Version: ") or 0) + 1 if at is None else at
    urls = (f"Project-URL: {label}, {url}" for label, url in own.items())
    lines[at:at] = [
        f"Summary: Patched by the sglang patch queue, release {release}{summary}",
        *urls,
    ]
    if (at := _last(lines, "License-File: ")) is not None:
        lines.insert(at + 1, f"License-File: {NOTICE}")
    return "\n".join(lines) + blank + body


def _last(lines: Sequence[str], field: str) -> int | None:
    """The index of the last line that begins so."""
    return max((at for at, line in enumerate(lines) if line.startswith(field)), default=None)


def entry_points(before: bytes | None, files: Container[str]) -> bytes | None:
    """entry_points.txt with the queue among upstream's plugins; None where it stays as it is."""
    text = (before or b"").decode("utf-8")
    if PLUGIN_LIST not in files or PLUGIN_MODULE not in files or f"\n{PLUGIN_NAME} " in text:
        return None
    line, head = f"{PLUGIN_NAME} = {PLUGIN_CALL}\n", f"[{PLUGIN_GROUP}]\n"
    if re.search(rf"(?m)^{re.escape(head)}", text):
        return text.replace(head, head + line, 1).encode()
    blank = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{blank}{head}{line}".encode()
