"""The GPUs of this host, and what is about to run on them: everything that evidence must name."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

import cases
import commandline
import compare
import launch
import record

SCHEMA = 1


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
    words = [
        "nvidia-smi",
        "--query-gpu=index,uuid,name,driver_version,memory.total,compute_cap",
        "--format=csv,noheader,nounits",
    ]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU to run on: nvidia-smi cannot be asked ({error})")
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        [row[0] for row in rows]
        if allowed is None
        else [name.strip() for name in allowed.split(",") if name.strip()]
    )
    found = [
        (name, row)
        for name in names
        for row in rows
        if name == row[0] or (len(name) > 4 and row[1].startswith(name))
    ]
    if not found:
        sys.exit(
            f"no GPU to run on: nvidia-smi shows {len(rows)}, CUDA_VISIBLE_DEVICES is {allowed}"
        )
    return [Gpu(name, row[2], row[3], int(row[4]), row[5]) for name, row in found]


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
    made, untouched = record.identity(tree)
    bundle = commandline.manifest_of(options)
    torch = place.ask(
        "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda':"
        " torch.version.cuda, 'python': __import__('platform').python_version()}))"
    )
    pinned = record.torch_pin(tree)
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
        "packages": [
            line
            for line in bundle.get("packages", [])
            if line.startswith(("flashinfer", "sgl", "transformers", "apache-tvm"))
        ],
        "capture": list(cases.CAPTURE),
        "chunk": cases.CHUNK,
        "tolerance": {
            "far": compare.TOLERANCE,
            "tie": compare.TIE,
            "strict": asdict(compare.STRICT),
            "routed": asdict(compare.ROUTED),
        },
    }


def queue_of(facts: dict) -> str:
    """Which queue a tree was made by, in words."""
    return f"queue {facts['queue_release']}" if facts["patches"] else "made by no queue"
