"""What patches set on other objects are fields that the release itself names: one that it has moved
would be set, and read by nobody."""

import os
import re
from pathlib import Path

TREE = Path(os.environ["PATCHQUEUE_TREE"])
ASSIGNED = re.compile(r"^\+ *(?P<owner>[a-z_]+(?:\.[a-z_]+)*)\.(?P<field>\w+) = ")
OVERLAY = "overlay.patch"  # our own files, which may name fields of their own


def assigned():
    """(patch, owner, field) of each field that an added line sets on another object than self."""
    for patch in sorted((TREE / "patches").rglob("*.patch")):
        for line in patch.read_text().splitlines() if patch.name != OVERLAY else ():
            found = ASSIGNED.match(line)
            if found and found["owner"] != "self":
                yield patch.name, found["owner"].rpartition(".")[2], found["field"]


def added():
    """All lines that patches add."""
    files = (TREE / "patches").rglob("*.patch")
    lines = (line for patch in files for line in patch.read_text().splitlines())
    return {line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")}


def test_patches_set_only_fields_that_the_release_names():
    # `static_forward_batch` and `batch` are both a batch: owners are told by their last word
    missing = {(f"{owner.rpartition('_')[2]}.{field}", patch) for patch, owner, field in assigned()}
    ours = added()
    for file in (TREE / "python/sglang/srt").rglob("*.py") if missing else ():
        if "prefill_graph" in file.parts:
            continue
        text = file.read_text()
        named = {(name, patch) for name, patch in missing if name in text}
        if named:
            code = (line.partition("#")[0] for line in text.splitlines() if line not in ours)
            own = "\n".join(code)
            missing -= {one for one in named if re.search(rf"{re.escape(one[0])}\b", own)}
    assert not missing, f"the release names no such field: {sorted(missing)}"
