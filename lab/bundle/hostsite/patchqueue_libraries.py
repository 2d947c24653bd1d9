"""Link this host's own CUDA libraries to where a carried torch looks for them: `python3 … SITE`.

SITE/patchqueue_libraries.json names them. Standard library only.
"""

import importlib.util
import json
import pathlib
import sys

PLAN = "patchqueue_libraries.json"


def link(site: pathlib.Path, folders: list[pathlib.Path]) -> None:
    """Make the links. folders: where this Python has packages. Ends the run before any link is made
    where a library that the bundle counts on is not on this host."""
    plan = json.loads((site / PLAN).read_text())
    found = {}
    for name in plan["libraries"]:
        there = [folder / name for folder in folders if (folder / name).is_file()]
        if not there:
            lacks = f"{sys.executable} has no {name}, which torch {plan['torch']} brings."
            step = "Put the Python that has it first on PATH, or pack the bundle for this host"
            sys.exit(f"{lacks} {step} (--host).")
        found[name] = there[0]
    for name, library in found.items():
        place = site / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(library)


def folders_of_nvidia() -> list[pathlib.Path]:
    """Where this Python has the package nvidia, whose folders lie in several places or in none."""
    spec = importlib.util.find_spec("nvidia")
    return [pathlib.Path(one).parent for one in (spec and spec.submodule_search_locations) or ()]


if __name__ == "__main__":
    link(pathlib.Path(sys.argv[1]), folders_of_nvidia())
