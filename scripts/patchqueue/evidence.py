"""Take what a GPU host found into evidence/<version>/<gpu>.json, once it is seen to be about this queue's own tree.

tests/gpu/run.py writes evidence.json, tests/gpu/bench.py bench.json (kept as <gpu>.bench.json). A later run of some
models or modes replaces these and keeps the others, as long as tree, torch, kernels and the harness's rules are the same.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import source
from .apply import changes, identity, load_queue, select, tree_after
from .outcome import Problem, Refused
from .pins import Pin, Pins

FOLDER = Path("evidence")
SCHEMA = 1
GOOD, NOT_RUN = ("passed", "not applicable"), "not run"
NEEDED = ("schema", "version", "queue", "changes", "tree", "tree_untouched", "gpu", "torch", "runs")
SAME = ("changes", "torch", "kernel", "gpu", "harness", "idle", "cpus")  # what two runs must share to be kept in one file
FIRST_SUBJECT = "nemotron"  # what the bench timed before it could time others
PLACE = re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}")  # a path on the host: nobody else has it


@dataclass(frozen=True)
class Taken:
    """What became of one file. kept: how many runs of the file that was there before stay."""

    path: Path
    runs: int
    kept: int
    passed: bool


def take(root: Path, pins: Pins, file: Path, say: Callable[[str], None], stale: bool = False) -> Taken:
    """Check one result and write it below evidence/. Raises Refused where it is unreadable or about another tree.

    stale: keep it even though the queue has changed since; the matrix and the bench's page then say so.
    """
    found = read(file)
    pin = pins.find(str(found["version"]))
    if not (stale and found["tree_untouched"]):
        check_tree(root, pin, found, file.name, say)
    path = root / FOLDER / str(pin.version) / f"{slug(found['gpu']['name'])}{_kind(found)}.json"
    found = clean(found)
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    kept = others(before, found)
    new = [run for run in found["runs"] if run["verdict"] != NOT_RUN or key(run) not in map(key, kept)]
    found["runs"] = sorted([*kept, *new], key=lambda run: (run.get("model", ""), run["mode"]))
    if "lifetimes" not in found and same(before, found) and "lifetimes" in before:
        found["lifetimes"] = before["lifetimes"]
    found["passed"] = all(one["verdict"] in GOOD for one in [*found["runs"], *([found["lifetimes"]] if "lifetimes" in found else [])])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return Taken(path, len(new), len(kept), found["passed"])


def _kind(found: dict) -> str:
    """What tells the files of one host apart: a bench, and of which model where it is not the first one."""
    subject = found.get("subject", FIRST_SUBJECT)
    return ("" if subject == FIRST_SUBJECT else f".{subject}") + ".bench" if "load" in found else ""


def read(file: Path) -> dict:
    """A result as a host wrote it. Raises Refused naming what is wrong with it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(Problem("no-evidence", str(file), f"cannot be read: {error.strerror}", "give the evidence.json or bench.json of a run")) from None
    except ValueError as error:
        raise Refused(Problem("bad-evidence", file.name, f"is no JSON: {error}")) from None
    missing = [name for name in NEEDED if not isinstance(found, dict) or name not in found]
    if missing or found["schema"] != SCHEMA:
        raise Refused(Problem("bad-evidence", file.name, f"lacks {' '.join(missing)}" if missing else f"has schema {found['schema']}, not {SCHEMA}", "run tests/gpu of this checkout"))
    return found


def check_tree(root: Path, pin: Pin, found: dict, name: str, say: Callable[[str], None]) -> None:
    """Raise Refused unless the run was of the tree that the queue makes now, with every file as it was built."""
    queue = load_queue(root)
    patches = select(queue, pin)
    again = f"`nox -s gpu -- {pin.tag}` runs it on the tree of today"
    if not found["tree_untouched"]:
        raise Refused(Problem("touched-tree", name, "files of the tree were changed after it was built", again))
    if found["changes"] != changes(queue, patches, pin):
        raise Refused(Problem("stale-evidence", name, f"is about another queue than today's for {pin.tag}", again))
    # a header that was edited since changes the tree's provenance, and nothing that ran
    if found["queue"] == identity(queue, patches, pin) and found["tree"] != tree_after(queue, patches, source.fetch(pin, None, say)):
        raise Refused(Problem("tree-mismatch", name, f"names the tree {found['tree']}, which the queue does not make", again))


def today(root: Path, pin: Pin) -> str:
    """The identity of what the queue does to a release now."""
    queue = load_queue(root)
    return changes(queue, select(queue, pin), pin)


def slug(gpu: str) -> str:
    """A GPU's name as a file's: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def others(before: dict | None, found: dict) -> list[dict]:
    """The runs of the file before that stay: same tree, host and harness, another model or mode, or one that had no time now."""
    if not same(before, found):
        return []
    new = {key(run) for run in found["runs"] if run["verdict"] != NOT_RUN}
    idle = {key(run) for run in found["runs"]} - new
    return [run for run in before["runs"] if key(run) not in new and (key(run) not in idle or run["verdict"] != NOT_RUN)]


def same(before: dict | None, found: dict) -> bool:
    """Whether two results may share a file."""
    return before is not None and all(before.get(name) == found.get(name) for name in SAME)


def key(run: dict) -> tuple:
    """What a run is of: a later one of the same replaces it."""
    return run.get("model"), run["mode"], run.get("measure")


def harness(root: Path) -> str:
    """The identity of the rules that tests/gpu judges by now."""
    return runpy.run_path(str(root / "tests/gpu/harness.py"))["identity"]()


def clean(found: dict) -> dict:
    """The result without what only its host has: paths, and the reports of servers that ran beside."""
    return _without_paths(found) | {"runs": [_without_paths(run | ({"report": report_of(run)} if "report" in run else {})) for run in found["runs"]]}


def report_of(run: dict) -> list[dict]:
    """The queue's own report of the run's server: of the servers it lists, those of this model."""
    servers = (run.get("report") or {}).get("servers", [])
    mine = [server for server in servers if Path(str(server.get("model", ""))).name == run.get("model")]
    short = [{name: server.get(name) for name in ("feature", "verdict", "reason", "offender")} for server in mine]
    return [entry for number, entry in enumerate(short) if entry not in short[:number]]


def _without_paths(value):
    if isinstance(value, dict):
        return {name: _without_paths(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return PLACE.sub("…", value) if isinstance(value, str) and not value.startswith("python/") else value
