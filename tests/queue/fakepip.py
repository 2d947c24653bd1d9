"""What pip answers where a folder of wheels is all that it knows, without its start and its
resolver, which take a second each time.

test_source.py holds it against pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What patchqueue.upstream.index._pip returns for the same words."""
    answer = {"config": _config, "download": _download, "index": _versions}[command[3]]
    code, stdout, stderr = answer(command)
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def _config(command: list[str]) -> tuple[int, str, str]:
    variables = {"PIP_RETRIES": "1", **os.environ}  # as the tool starts pip
    settings = {name[4:]: value for name, value in variables.items() if name.startswith("PIP_")}
    rows = (
        f":env:.{name.lower().replace('_', '-')}={settings[name]!r}\n" for name in sorted(settings)
    )
    return 0, "".join(rows), ""


def _download(command: list[str]) -> tuple[int, str, str]:
    options = dict(pairwise(command))
    python, abi = options["--python-version"], options.get("--abi", "")
    tag = f"{options.get('--implementation')}{python}-{abi}-{options['--platform']}"
    wheels = {version: wheel for version, wheel, tags in _wheels() if {tag, "py3-none-any"} & tags}
    wanted = command[-1].partition("==")[2]
    if Version(wanted) in wheels:
        shutil.copy(wheels[Version(wanted)], options["-d"])
        return 0, "", ""
    there = ", ".join(map(str, sorted(wheels))) or "none"
    return (
        1,
        "",
        "ERROR: Could not find a version that satisfies the requirement"
        f" sglang=={wanted} (from versions: {there})\n"
        f"ERROR: No matching distribution found for sglang=={wanted}\n",
    )


def _versions(command: list[str]) -> tuple[int, str, str]:
    versions = sorted({version for version, _, _ in _wheels()}, reverse=True)
    shown = [str(one) for one in versions if "--pre" in command or not one.is_prerelease]
    if not shown:
        return 1, "", "ERROR: No matching distribution found for sglang\n"
    answer = {"name": "sglang", "versions": shown, "latest": shown[0]}
    return 0, f"{json.dumps(answer)}\n", ""


def _wheels() -> Iterator[tuple[Version, Path, set[str]]]:
    """Each wheel of the test's folder with its version and its tags."""
    for wheel in sorted(Path(os.environ.get("PIP_FIND_LINKS", "/nowhere")).glob("*.whl")):
        _, version, _, tags = parse_wheel_filename(wheel.name)
        yield version, wheel, set(map(str, tags))
