"""What a patched wheel says of itself. To people: that it is changed, where, and who answers for
it; the Apache License 2.0 asks for prominent notices in section 4(b). To upstream's own list of
plugins, a line of .dist-info/entry_points.txt: the queue's name.

From 0.5.11 on every process of a server asks for the group sglang.srt.plugins, logs each name, and
calls it (sglang/srt/plugins/__init__.py, load_plugins; the file is the same up to 0.5.23). What is
named here logs one line and changes nothing. A plugin that fails is logged, and the server goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct

from ..files import record
from ..queue.series import OVERLAY_PATCH
from ..upstream.release import Edits

ABOUT = Path("releases/about.toml")
FILE = "NOTICE.patch-queue.txt"  # upstream's wheels have no NOTICE; one that comes is kept as it is
BILL = "sboms/patchqueue.cdx.json"
QUEUE = "the sglang patch queue"
# labels of Project-URL that ask for reports: a patched wheel's are none of upstream's business
REPORTS = ("bugtracker", "bugs", "bugreports", "issues", "issuetracker", "tracker", "support")
LABEL = re.compile(r"[^a-z0-9]")
GROUP, NAME = "sglang.srt.plugins", "prefill_graph_queue"
ENTRY_POINTS = "entry_points.txt"
CALLED = "sglang.srt.prefill_graph.report.provenance:log_plugin"
# the release's list of plugins, and the module of what it is to call
PLUGINS, MODULE = (
    "sglang/srt/plugins/__init__.py",
    "sglang/srt/prefill_graph/report/provenance.py",
)
INFO = re.compile(r"^sglang-[^/]*\.dist-info/")


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """releases/about.toml. repository: empty, or an address without a slash at its end."""

    repository: Annotated[str, Meta(pattern=r"^(https://\S*[^/\s])?\Z")] = ""


def repository(root: Path) -> str:
    """The queue's own address; empty if it is not published. Raises Refused if about.toml is
    broken."""
    try:
        content = (root / ABOUT).read_bytes()
    except FileNotFoundError:
        return ""
    return record.toml(content, About, str(ABOUT), "bad-releases").repository


def changes(upstream: Mapping[str, bytes], made: Mapping[str, bytes]) -> Edits:
    """The members in which two wheels differ; their RECORDs and the version in .dist-info's name do
    not count."""
    old, new = (
        {
            INFO.sub(".dist-info/", name): content
            for name, content in wheel.items()
            if not name.endswith(".dist-info/RECORD")
        }
        for wheel in (upstream, made)
    )
    changed = sorted(name for name in old.keys() & new if old[name] != new[name])
    return Edits(tuple(changed), tuple(sorted(new.keys() - old)), tuple(sorted(old.keys() - new)))


def text(version: str, wheel: str, found: Edits, address: str) -> str:
    """The notice of the wheel `version`, which was made of upstream's file `wheel`.

    address: the queue's repository; "" where it has none.
    """
    public, _, local = version.partition("+")
    _, number, *profile = local.split(".")
    part = f", profile {profile[0]}" if profile else ""
    where = f" ({address})" if address else ""
    head = f"""\
This is a changed sglang: version {version}, not the sglang project's own {public}.

{QUEUE[0].upper()}{QUEUE[1:]}{where} made it of upstream's wheel
{wheel}. It is release {number} of the queue{part}.
The sglang project neither made nor checked it. Report what goes wrong to the queue{where}.

Both are under the Apache License 2.0. As its section 4(b) asks, the files that
were changed are listed here. patch_queue.json names every patch.
"""
    parts = {"Changed": found.changed, "Added": found.added, "Removed": found.removed}
    own = {
        what: [name for name in names if name.startswith("sglang/")]
        for what, names in parts.items()
    }
    lists = (
        f"\n{what}:\n" + "".join(f"  {name}\n" for name in names)
        for what, names in own.items()
        if names
    )
    return head + "".join(lists)


def bill_of_materials(version: str, tree: Mapping[str, Any]) -> str:
    """The wheel's SBOM in CycloneDX 1.6: upstream's wheel, and each patch in `tree`, its record.

    PEP 770 gives it the folder sboms/ of .dist-info/. Pedigree:
    https://cyclonedx.org/docs/1.6/json/#metadata_component_pedigree
    """
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


def metadata(content: str, release: int, address: str) -> str:
    """METADATA whose Summary says that the wheel is patched, and whose URLs send reports to the
    queue.

    Upstream's other URLs are kept and labelled as upstream's; the notice is listed as a licence
    file where upstream lists its own.
    """
    head, blank, body = content.partition("\n\n")
    summary, lines = f"Summary: Patched by {QUEUE}, release {release}", list[str]()
    for line in head.split("\n"):
        name, _, value = line.partition(": ")
        label, _, url = value.partition(", ")
        if name == "Summary":
            lines.append(f"{summary}: {value}")
        elif name == "Home-page":
            lines.append(f"Project-URL: Upstream Homepage, {value}")
        elif name != "Project-URL":
            lines.append(line)
        elif LABEL.sub("", label.lower()) not in REPORTS:
            lines.append(f"Project-URL: Upstream {label}, {url}")
    if not any(line.startswith("Summary: ") for line in lines):
        at = next(n for n, line in enumerate(lines) if line.startswith("Version: ")) + 1
        lines.insert(at, summary)
    if address:
        at = next(n for n, line in enumerate(lines) if line.startswith("Summary: ")) + 1
        own = {"Homepage": address, "Bug Tracker": f"{address}/issues"}
        lines[at:at] = [f"Project-URL: {label}, {url}" for label, url in own.items()]
    files = [n for n, line in enumerate(lines) if line.startswith("License-File: ")]
    if files:
        lines.insert(files[-1] + 1, f"License-File: {FILE}")
    return "\n".join(lines) + blank + body


def entry_points(before: bytes | None, files: Container[str]) -> bytes | None:
    """entry_points.txt with the queue in upstream's list of plugins; None where it stays as it is.

    before: its content, None where there is no such file. files: the package's, by their names in a
    wheel: one of them is the release's list of plugins, and one the queue's, or nothing is named.
    """
    text = (before or b"").decode("utf-8")
    if PLUGINS not in files or MODULE not in files or f"\n{NAME} " in text:
        return None
    line, head = f"{NAME} = {CALLED}\n", f"[{GROUP}]\n"
    if re.search(rf"(?m)^{re.escape(head)}", text):
        return text.replace(head, head + line, 1).encode()
    blank = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{blank}{head}{line}".encode()
