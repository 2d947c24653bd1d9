"""The GPUs of this host, and what is about to run on them: everything that evidence must name."""

from __future__ import annotations

import argparse
import base64
import csv
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import commandline
import launch
import untouched

SCHEMA = 1
# the first is made with a wheel from 0.5.7 on; without it a checkout calls itself 0.0.0.dev0
VERSIONS = ("_version.py", "version.py")
PACKAGES = ("flashinfer", "sgl", "transformers", "apache-tvm")  # whose versions are kept
VERSION = re.compile(r"(?m)^ *(?:__version__ = )?_*version_* = [\"'](\d[^\"']*)[\"']")


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi. use: what CUDA_VISIBLE_DEVICES calls it."""

    use: str
    name: str
    driver: str
    memory_mib: int
    compute_capability: str


def visible() -> list[Gpu]:
    """The GPUs that this process may use, in CUDA_VISIBLE_DEVICES's order where it is set. Ends the
    run where there is none."""
    query = "index,uuid,name,driver_version,memory.total,compute_cap"
    words = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU to run on: nvidia-smi cannot be asked ({error})")
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [row[0] for row in rows] if allowed is None else allowed.split(",")
    found = [
        Gpu(name, driven, driver, int(memory), capability)
        for name in map(str.strip, names)
        for index, uuid, driven, driver, memory, capability in rows
        if name == index or (len(name) > 4 and uuid.startswith(name))
    ]
    if not found:
        seen = f"nvidia-smi shows {len(rows)}, CUDA_VISIBLE_DEVICES is {allowed}"
        sys.exit(f"no GPU to run on: {seen}")
    return found


def gpu() -> dict:
    """The first GPU at hand, as evidence names it."""
    facts = asdict(visible()[0])
    facts.pop("use")
    return facts


def used_mib() -> int:
    """Memory in use on the first GPU that this process may see, by everyone. nvidia-smi numbers
    GPUs as CUDA_DEVICE_ORDER=PCI_BUS_ID does."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    words = ["nvidia-smi", "-i", first, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0])


def describe(place: launch.Place, options: argparse.Namespace) -> dict:
    """What is about to run, and where: everything that evidence must name."""
    tree = commandline.tree_of(options)
    made, untouched = identity(tree)
    bundle = commandline.manifest_of(options)
    torch = place.ask(
        "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda':"
        " torch.version.cuda, 'python': __import__('platform').python_version()}))"
    )
    pinned = torch_pin(tree)
    return {
        "schema": SCHEMA,
        "version": made["version"],
        "tag": made["tag"],
        "queue_release": made.get("release"),
        "tree": made["tree"]["after"],
        "tree_untouched": untouched,
        "patches": made["patches"],
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": gpu(),
        "torch": {
            "version": torch["version"],
            "cuda": torch["cuda"],
            "pinned": pinned,
            "off_pin": torch["version"].split("+")[0] != pinned,
        },
        "python": torch["python"],
        "packages": [line for line in bundle.get("packages", []) if line.startswith(PACKAGES)],
    }


def queue_of(facts: dict) -> str:
    """Which queue a tree was made by, in words."""
    return f"queue {facts['queue_release']}" if facts["patches"] else "made by no queue"


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
    """What stands for the record of a tree that the queue did not make; no evidence is kept of it.
    Ends the run where the folder holds no sglang that says its version."""
    files = [tree / "sglang" / name for name in VERSIONS]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    if not (version := VERSION.search(text)):
        lacks = f"{tree}: no sglang/ that says its version in {' or '.join(VERSIONS)}"
        sys.exit(f"{lacks}; --tree names the folder that holds sglang/")
    made = {"after": untouched.tree_hash(tree)}
    return {"version": version[1], "tag": f"v{version[1]}", "tree": made, "patches": []}


def torch_pin(tree: Path) -> str:
    """The torch version that the release's own metadata asks for; empty where it does not say."""
    text = "".join(file.read_text() for file in tree.glob("sglang-*.dist-info/METADATA"))
    found = re.search(r"(?m)^Requires-Dist: torch==([^\s;]+)", text)
    return found[1] if found else ""


def _hash(file: Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
