"""What makes the release's own package out of a patched one: a plan, and the changed files.

tests/gpu/untouched.py follows the plan on a GPU host, so that both trees are measured in one run.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchqueue.files.tree import sha256
from patchqueue.wheels import Built

FOLDER, PLAN, FILES = "untouched", "plan.json", "files"
SCHEMA = 1


def lay(built: Built, folder: Path) -> Path:
    """Write the plan and the release's own content of the changed files. Replaces the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(built.upstream) as before, zipfile.ZipFile(built.path) as after:
        own = _digests(before)
        made = plan(own, _digests(after)) | {
            "schema": SCHEMA,
            "tree": built.record["tree"]["before"],
        }
        for name in made["replace"]:
            file = folder / FILES / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(before.read(name))
    (folder / PLAN).write_text(json.dumps(made, indent=1) + "\n")
    return folder


def _digests(wheel: zipfile.ZipFile) -> dict[str, str]:
    """The sha256 of every file in a wheel, by its name there."""
    files = [member.filename for member in wheel.infolist() if not member.is_dir()]
    return {name: sha256(wheel.read(name)) for name in files}


def plan(own: Mapping[str, str], patched: Mapping[str, str]) -> dict[str, Any]:
    """Which members of the patched wheel go, and which of the release's own come in their place.

    Both map a member's name to the sha256 of its content.
    """
    replaced = {name: own[name] for name in sorted(own) if patched.get(name) != own[name]}
    return {"remove": sorted(patched.keys() - own.keys()), "replace": replaced}
