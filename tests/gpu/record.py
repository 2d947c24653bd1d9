"""What a tree says that it was made of, and what stands for that where it says nothing. Standard
library only."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import sys
from pathlib import Path

import untouched

# the first is made with a wheel from 0.5.7 on; without it a checkout calls itself 0.0.0.dev0
VERSIONS = ("_version.py", "version.py")
VERSION = re.compile(r"(?m)^ *(?:__version__ = )?_*version_* = [\"'](\d[^\"']*)[\"']")


def identity(tree: Path) -> tuple[dict, bool]:
    """The tree's own record (from its .dist-info/, else from the work tree above), and whether
    every file is as built. Ends the run where a record says too little."""
    found = sorted(tree.glob("sglang-*.dist-info/patch_queue.json"))
    above = tree.parent / "provenance.json"
    if not found:
        return (json.loads(above.read_text()) if above.is_file() else unrecorded(tree)), True
    record = json.loads(found[0].read_text())
    if "changes" in record:
        sys.exit(f"{tree}: it was built by an earlier tool, build it again")
    rows = csv.reader((found[0].with_name("RECORD")).read_text().splitlines())
    as_built = all(not row[1] or row[1] == _hash(tree / row[0]) for row in rows if row)
    return record, as_built


def unrecorded(tree: Path) -> dict:
    """What stands for the record of a tree that the queue did not make: a checkout's branch, as of
    a pull request, or the release itself. It names no queue, so that no evidence is kept of it.

    Ends the run where the folder holds no sglang that says its version.
    """
    files = [tree / "sglang" / name for name in VERSIONS]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    if not (version := VERSION.search(text)):
        sys.exit(
            f"{tree}: no sglang/ that says its version in {' or '.join(VERSIONS)};"
            " --tree names the folder that holds sglang/"
        )
    return {
        "version": version[1],
        "tag": f"v{version[1]}",
        "tree": {"after": untouched.tree_hash(tree)},
        "patches": [],
    }


def torch_pin(tree: Path) -> str:
    """The torch version that the release's own metadata asks for; empty where it does not say."""
    text = "".join(file.read_text() for file in tree.glob("sglang-*.dist-info/METADATA"))
    found = re.search(r"(?m)^Requires-Dist: torch==([^\s;]+)", text)
    return found[1] if found else ""


def _hash(file: Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
