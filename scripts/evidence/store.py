"""Take what a GPU host found into evidence/<version>/<gpu>.json, once it is seen to be about this
queue's own tree.

tests/gpu/run.py writes evidence.json, bench.py bench.json (kept as <gpu>.bench.json), gain.py
gain.json (<gpu>.gain.json, which a later run replaces as a whole: trees are compared within one run
only). A later run of some models or modes replaces these and keeps the others, as long as tree,
torch, kernels and the harness's rules are the same. Runs of several hosts in one file (merge.py):
what a run was made under, and the file does not say, the run says under "host".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from patchqueue.files import atomic, record
from patchqueue.files.locking import locked
from patchqueue.hint import to_type
from patchqueue.laying.apply import load_queue
from patchqueue.laying.selection import select
from patchqueue.outcome import Problem, Refused
from patchqueue.upstream import pins as pinning
from patchqueue.upstream import source
from patchqueue.upstream.pins import Pin, Pins

from .records import USUAL_ATTENTION, Found, Record, Timed

FOLDER = Path("evidence")
LOCK = Path("work/.patchqueue/evidence.lock")
Entry = dict[str, Any]  # a file, or a run, as JSON has it: it holds more than anything here reads
Key = tuple[Any, ...]
GOOD, NOT_RUN = ("passed", "not applicable"), "not run"
NO_MEASURE = "its reference failed"  # begins the reason of a run that shows nothing
EAGER = "eager"
BREAKABLE = "breakable"  # the mode whose breaks tests/gpu/lifetimes.py checks
# what two runs must share to be kept in one file
SAME = ("changes", "torch", "kernel", "gpu", "harness", "idle", "cpus")
# what may be otherwise on another host of the same kind of GPU, or on another day
OF_HOST = (
    *SAME,
    "queue",
    "queue_release",
    "tree",
    "date",
    "python",
    "shims",
    "dependencies_of",
    "packages",
    "capture",
    "chunk",
    "tolerance",
    "gpus",
)
TREE = ("tree_untouched", "changes", "queue", "tree")  # what of a result names the tree
MEASURED = (".bench.json", ".gain.json")  # how files end that hold times, not proofs
USUAL_LOAD = "gsm8k"
FIRST_SUBJECT = "nemotron"  # what the bench timed before it could time others
PLACE = re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}")  # a path on the host: nobody else has it


@dataclass(frozen=True)
class Taken:
    """What became of one file. kept: how many runs of the file that was there before stay."""

    path: Path
    runs: int
    kept: int
    passed: bool


def take(root: Path, pins: Pins, file: Path, stale: bool = False) -> list[Taken]:
    """Check one result and write it below evidence/. Raises Refused where it is unreadable or about
    another tree. Most results become one file; a gain is one for each mode of the patched tree.

    stale: keep it even though the queue has changed since; the matrix and the bench's page then say
    so.
    """
    found = read(file)
    pin = pins.find(str(found["version"]))
    if not (stale and found["tree_untouched"]):
        check_tree(root, pin, found, file.name)
    with locked(root / LOCK):
        return [_keep(place_of(root, pin, one), clean(one)) for one in _by_mode(found)]


def _by_mode(found: Entry) -> list[Entry]:
    """A gain whose patched tree ran in several modes, as one for each of them beside the untouched
    tree. Anything else as it is."""
    runs = found["runs"]
    modes = dict.fromkeys(run["mode"] for run in runs if run.get("tree") == "patched")
    if "gain" not in found or len(modes) < 2:
        return [found]
    return [
        found | {"runs": [run for run in runs if run["tree"] != "patched" or run["mode"] == mode]}
        for mode in modes
    ]


def _keep(path: Path, found: Entry) -> Taken:
    before = json.loads(path.read_bytes()) if path.is_file() else {}
    kept = [stated(run, facts(before, run), found) for run in others(before, found)]
    there = {key(run) for run in kept}
    new = [run for run in found["runs"] if run["verdict"] != NOT_RUN or key(run) not in there]
    found["runs"] = sorted([*kept, *new], key=lambda run: (run.get("model", ""), run["mode"]))
    if same(before, found) and "lifetimes" in before:
        found.setdefault("lifetimes", before["lifetimes"])
    found["passed"] = passed(found)
    put(path, json.dumps(found, indent=1) + "\n")
    return Taken(path, len(new), len(kept), found["passed"])


def place_of(root: Path, pin: Pin, found: Entry) -> Path:
    """The file that keeps a result: GPUs of another name have files of their own."""
    return root / FOLDER / str(pin.version) / f"{slug(found['gpu']['name'])}{_kind(found)}.json"


def put(path: Path, text: str) -> None:
    """Write a file whole or not at all: a run that is killed leaves the old one or the new one."""
    atomic.write(path, text.encode())


def passed(found: Entry) -> bool:
    """Whether every run of a file passed, and every check of lifetimes that came with one."""
    lifetimes = [
        one["lifetimes"]
        for one in [found, *(run.get("host", {}) for run in found["runs"])]
        if one.get("lifetimes")
    ]
    return all(one["verdict"] in GOOD for one in [*found["runs"], *lifetimes])


def facts(found: Entry, run: Entry) -> Entry:
    """Under what a run was made, by the names of OF_HOST: as its file says, but for what the run
    says itself.

    A run in the breakable graph has its host's check of lifetimes there too; None where that host
    made none.
    """
    names = (*OF_HOST, "lifetimes") if run["mode"] == BREAKABLE else OF_HOST
    return {name: found.get(name) for name in names} | dict(run.get("host", {}))


def stated(run: Entry, facts: Entry, header: Entry) -> Entry:
    """The run as a file with `header` keeps it: what it was made under, where that is not what the
    file says."""
    own = {name: value for name, value in facts.items() if value != header.get(name)}
    return without(run, "host") | ({"host": own} if own else {})


def without(entry: Entry, *names: str) -> Entry:
    return {name: value for name, value in entry.items() if name not in names}


def _kind(found: Entry) -> str:
    """What tells the files of one host apart: with which attention where it is not the usual one; a
    bench or a gain, of which model where it is not the first one, in which graphs, and which loads
    of users it took."""
    subject = found.get("subject", FIRST_SUBJECT)
    kind = "bench" if "load" in found else "gain" if "gain" in found else ""
    runs = found["runs"] if kind == "gain" else []
    beside = graph_told((run["tree"], run["mode"]) for run in runs)
    served = loads_told(found.get("gain", {}).get("traffic", ()))
    attention = found.get("attention", USUAL_ATTENTION)
    model = "" if subject == FIRST_SUBJECT or not kind else subject
    words = (model, "" if attention == USUAL_ATTENTION else attention, beside, served, kind)
    return "".join(f".{word}" for word in words if word)


def loads_told(kinds: Sequence[str]) -> str:
    """The loads of users that a gain took, as its name tells them; empty for none.

    Those with many short requests are the usual ones. Without them a gain was asked for later, and
    stands beside another one.
    """
    return "traffic" if USUAL_LOAD in kinds else "-".join(sorted(kinds))


def graph_told(ran: Iterable[tuple[str, str]]) -> str:
    """The graphs of a comparison, as its name tells them. ran: tree and mode of each run.

    Of the patched release alone, while the untouched one prefilled eagerly. Of both, where they are
    not the same; where they are, a piecewise one: empty stands for both eager or both breakable.
    """
    modes: dict[str, set[str]] = {"untouched": set(), "patched": set()}
    for tree, mode in ran:
        modes[tree].add(mode)
    before, after = (min(modes[tree] - {EAGER}, default="") for tree in ("untouched", "patched"))
    if not modes["untouched"] or before == after == BREAKABLE or not after:
        return ""
    if modes["untouched"] == {EAGER} or before == after:
        return after
    return f"{after}-beside-{before}"


def read(file: Path) -> Entry:
    """A result as a host wrote it. Raises Refused naming what is wrong with it."""
    load(file, Record)
    return dict(json.loads(file.read_bytes()))


R = TypeVar("R", bound=Found)


def load(file: Path, kind: type[R]) -> R:
    """The same as a record."""
    step = f"give the {file.name} as the run left it"
    try:
        content = file.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise Refused(Problem("no-evidence", str(file), what, step)) from None
    return record.json(content, kind, file.name, "bad-evidence", step)


def proofs(root: Path, version: str = "*") -> list[Record]:
    """What GPU hosts found about a release, or about all."""
    files = sorted((root / FOLDER).glob(f"{version}/*.json"))
    return [load(file, Record) for file in files if not file.name.endswith(MEASURED)]


T = TypeVar("T", bound=Timed)


def timed(root: Path, names: str, kind: type[T]) -> list[T]:
    """Every measurement kept in files of such names, compared with the queue of today."""
    pins = pinning.load(root)
    found = [load(file, kind) for file in (root / FOLDER).glob(names)]
    return [
        replace(one, earlier_queue=one.changes != today(root, pins.find(one.version)))
        for one in found
    ]


def check_tree(root: Path, pin: Pin, found: Entry, name: str) -> None:
    """Raise Refused unless the run was of the tree that the queue makes now, with every file as it
    was built."""
    selection = select(load_queue(root), pin)
    again = f"{to_type('gpu', pin.tag)} runs it on the tree of today"
    what = ""
    if not found["tree_untouched"]:
        bad, what = "touched-tree", "files of the tree were changed after it was built"
    elif found["changes"] != selection.effect_sha256:
        bad, what = "stale-evidence", f"is about another queue than today's for {pin.tag}"
    # a header that was edited since changes the tree's provenance, and nothing that ran
    elif found["queue"] == selection.stack_sha256 and found["tree"] != selection.tree_after(
        source.fetch(pin, None)
    ):
        bad = "tree-mismatch"
        what = f"names the tree {found['tree']}, which the queue does not make"
    if what:
        raise Refused(Problem(bad, name, what, again))


def today(root: Path, pin: Pin) -> str:
    """The identity of what the queue does to a release now."""
    return select(load_queue(root), pin).effect_sha256


def slug(gpu: str) -> str:
    """A GPU's name as a file's: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def others(before: Entry, found: Entry) -> list[Entry]:
    """The runs of the file before that stay: same tree, host and harness, another model or mode, or
    one that had no time now."""
    if not same(before, found) or "gain" in found:
        return []
    new = {key(run) for run in found["runs"] if run["verdict"] != NOT_RUN}
    idle = {key(run) for run in found["runs"]} - new
    alike = [run for run in before["runs"] if same(before | run.get("host", {}), found)]
    return [
        run
        for run in alike
        if key(run) not in new and (key(run) not in idle or run["verdict"] != NOT_RUN)
    ]


def same(before: Entry, found: Entry) -> bool:
    """Whether two results may share a file."""
    return all(before.get(name) == found.get(name) for name in SAME)


def key(run: Entry) -> Key:
    """What a run is of: a later one of the same replaces it."""
    return run.get("model"), run["mode"], run.get("measure")


def clean(found: Entry) -> Entry:
    """The result without what only its host has: paths, and the reports of servers that ran
    beside."""
    runs = [run | ({"report": report_of(run)} if "report" in run else {}) for run in found["runs"]]
    cleaned: Entry = without_paths(found | {"runs": runs})
    return cleaned


def report_of(run: Entry) -> list[Entry]:
    """The queue's own report of the run's server: of the servers it lists, those of this model."""
    report = run["report"] or {}
    if isinstance(report, list):  # of a result that was kept already
        return report
    short = [
        {name: server.get(name) for name in ("feature", "verdict", "reason", "offender")}
        for server in report.get("servers", [])
        if Path(str(server.get("model", ""))).name == run.get("model")
    ]
    return [entry for number, entry in enumerate(short) if entry not in short[:number]]


def without_paths(value: Any) -> Any:
    """The value without paths on the host."""
    if isinstance(value, dict):
        return {name: without_paths(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    is_text = isinstance(value, str) and not value.startswith("python/")
    return PLACE.sub("…", value) if is_text else value
