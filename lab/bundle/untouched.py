"""What makes the release's own package out of a patched one: a plan, and the changed files.
tests/gpu/untouched.py follows the plan on a GPU host, so that one run measures both trees."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from patchqueue.files.tree import sha256
from patchqueue.wheels import Built

FOLDER, PLAN, FILES = "untouched", "plan.json", "files"
SCHEMA = 1


def lay(built: Built, folder: Path) -> Path:
    """Write the plan (which members of the patched wheel go, and which of the release's own come in
    their place), and the content of the latter. Replaces the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(built.upstream) as before, zipfile.ZipFile(built.path) as after:
        own, patched = (_files(wheel) for wheel in (before, after))
        same = {name for name in own & patched if before.read(name) == after.read(name)}
        changed = sorted(own - same)
        before.extractall(folder / FILES, changed)
        plan = {
            "schema": SCHEMA,
            "tree": built.record["tree"]["before"],
            "remove": sorted(patched - own),
            "replace": {name: sha256(before.read(name)) for name in changed},
        }
    (folder / PLAN).write_text(json.dumps(plan, indent=1) + "\n")
    return folder


def _files(wheel: zipfile.ZipFile) -> set[str]:
    """The members of a wheel, without its folders: sglang's wheels list these."""
    return {member.filename for member in wheel.infolist() if not member.is_dir()}
