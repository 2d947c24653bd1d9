"""Where sglang is installed, asked of the Pythons at hand. sglang itself is not imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..hint import to_type
from ..outcome import Refused

ASK = (
    "import importlib.util as util; spec = util.find_spec('sglang');"
    " print(next(iter(spec.submodule_search_locations)) if spec else '')"
)
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")  # name the folder of an activated environment
SECONDS = 60


def site_packages(python: str = "") -> tuple[Path, str]:
    """(the folder that holds sglang/, the Python that imports it from there): of `python`, else of
    the activated environment, else of the Pythons on PATH. Raises Refused for none, and for
    several."""
    tried = [python] if python else _pythons()
    sites: dict[Path, str] = {}
    for each in tried:
        if site := _site_of(each):
            sites.setdefault(site, each)
    if not sites:
        what = f"no sglang is installed for {' or '.join(tried) or 'any Python on PATH'}"
        step = (
            "activate its environment, or name its Python or its folder:"
            f" {to_type('install', '--python PATH')}, {to_type('install', '--site-packages DIR')}"
        )
        raise Refused.of("no-sglang", "install", what, step)
    if len(sites) > 1:
        what = "several are installed: " + ", ".join(map(str, sites))
        steps = (to_type("install", "--python", each) for each in sites.values())
        raise Refused.of("several-sglang", "install", what, f"name one: {' or '.join(steps)}")
    return next(iter(sites.items()))


def _pythons() -> list[str]:
    """The activated environment's; else all on PATH, less the one that runs this."""
    for name in ACTIVE:
        python = Path(os.environ.get(name) or "/nowhere") / "bin/python"
        if python.is_file():
            return [str(python)]
    own = os.path.realpath(Path(sys.prefix) / "bin")
    folders = dict.fromkeys(os.environ.get("PATH", "").split(os.pathsep))
    found = (
        shutil.which(name, path=folder)
        for folder in folders
        if os.path.realpath(folder) != own
        for name in ("python", "python3")
    )
    return list(dict.fromkeys(filter(None, found)))


def _site_of(python: str) -> Path | None:
    """Raises Refused where there is no such Python."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", ASK],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd="/",
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or "does not answer"
        step = "name the Python of the environment that has sglang"
        raise Refused.of("no-python", python, f"cannot be run: {why}", step) from None
    package = done.stdout.strip()
    return Path(package).resolve().parent if package else None
