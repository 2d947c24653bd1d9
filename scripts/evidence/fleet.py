"""What a fleet of GPU hosts has to run: the proofs of every release, kind of GPU and model, as CI's
and a batch system's jobs.

The models and modes are those of the support matrix (evidence/matrix.toml): a proof that fills no
cell of it is no job.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from patchqueue.environments.testing import lock_file
from patchqueue.hint import to_type
from patchqueue.laying.apply import changes, load_queue
from patchqueue.outcome import Problem, Refused
from patchqueue.upstream.pins import Pin
from patchqueue.wheels.host import load as load_host

from . import cells, matrix, store
from .records import Record

CURRENT, STALE, NOT_RUN = "current", "stale", "not run"
REFERENCE = "reference"


@dataclass(frozen=True)
class Job:
    """One model on one release and kind of GPU: one call of `scripts/nox gpu`.

    modes: those that fill cells of the matrix; evidence: what is known of the least known of them:
    current, stale or not run. queue: whether the queue brings or repairs any of it, or the release
    has it all by itself. torch: what the release pins. host, host_torch: the description of hosts
    without an index that `scripts/nox bundle` packs for, and its torch. engine_seconds: what its
    engines took there on other days or in other releases, added up; None where a mode was never
    run.
    """

    revision: str
    gpu: str
    model: str
    modes: tuple[str, ...]
    evidence: str
    queue: bool
    torch: str
    host: str
    host_torch: str
    engine_seconds: int | None

    def as_json(self) -> dict:
        return asdict(self) | {"modes": list(self.modes)}


def jobs(
    root: Path,
    pins: Sequence[Pin],
    gpus: Sequence[str],
    models: Sequence[str],
    description: Path,
    stale: bool,
) -> list[Job]:
    """Every job, newest release first. gpus, models: only these; all that evidence names, and all,
    where there is none.

    stale: only modes whose evidence is about an earlier queue, or missing. Raises Refused for a
    model that no cell is about, and where nothing says which GPUs there are.
    """
    queue = load_queue(root)
    kept = {pin.tag: store.proofs(root, str(pin.version)) for pin in pins}
    shape = cells.load(root)
    known = shape.models
    if unknown := [model for model in models if model not in known]:
        raise Refused(
            Problem(
                "no-model",
                unknown[0],
                "is in no cell of the support matrix",
                f"one of {' '.join(known)}",
            )
        )
    labels = list(dict.fromkeys(map(label, gpus or _seen(root))))
    if not labels:
        raise Refused(
            Problem(
                "no-gpu-kind",
                "matrix",
                "evidence/ names no GPU yet",
                f"name what the fleet has: {to_type('matrix', '--gpu H200')}",
            )
        )
    if "" in labels:
        raise Refused(
            Problem(
                "no-gpu-kind",
                "--gpu",
                "names no GPU",
                f"name what the fleet has: {to_type('matrix', '--gpu H200')}",
            )
        )
    took = {one: durations(root, one) for one in labels}
    found = []
    for pin in sorted(pins, key=lambda pin: pin.version, reverse=True):
        host, now = (
            load_host(description, pin.version),
            changes(queue, queue.select(pin.version), pin),
        )
        expected = [(one, matrix.expected(queue, pin, one).state) for one in shape.features]
        for gpu in labels:
            files = [file for file in kept[pin.tag] if is_of(gpu, file.gpu.name)]
            for model in models or known:
                features = [
                    one
                    for one, state in expected
                    if model in one.models and state is not matrix.State.NOT_APPLICABLE
                ]
                states = {one.mode: _known(files, now, model, one.mode) for one in features}
                modes = tuple(mode for mode in states if not stale or states[mode] != CURRENT)
                if modes:
                    ours = any(
                        state is matrix.State.NOT_RUN
                        for one, state in expected
                        if one in features and one.mode in modes
                    )
                    least = max(
                        (states[mode] for mode in modes), key=(CURRENT, STALE, NOT_RUN).index
                    )
                    found.append(
                        Job(
                            pin.tag,
                            gpu,
                            model,
                            modes,
                            least,
                            ours,
                            torch_of(root, pin),
                            host.name,
                            host.torch,
                            _expected(took[gpu], model, modes),
                        )
                    )
    return found


def label(gpu: str) -> str:
    """A GPU's name as a runner's label: "NVIDIA H100 80GB HBM3" -> "H100-80GB-HBM3"."""
    return re.sub(r"[^A-Za-z0-9]+", "-", gpu.removeprefix("NVIDIA ")).strip("-")


def is_of(label: str, gpu: str) -> bool:
    """Whether a GPU is of the kind that a label names: "H100" is any H100, and no H100 is an
    "H10"."""
    wanted, name = (store.slug(text).removeprefix("nvidia-") for text in (label, gpu))
    return name == wanted or name.startswith(f"{wanted}-")


def torch_of(root: Path, pin: Pin) -> str:
    """The torch that the release's locked environment has; empty where it has none."""
    file = lock_file(root, pin)
    found = (
        re.search(r"(?m)^torch==([^\s;+]+)", file.read_text(encoding="utf-8"))
        if file.is_file()
        else None
    )
    return found[1] if found else ""


def _seen(root: Path) -> list[str]:
    """Every GPU that evidence names."""
    return sorted({file.gpu.name for file in store.proofs(root)})


def _known(files: Sequence[Record], now: str, model: str, mode: str) -> str:
    """What is known of one model in one mode. The breakable graph is known where its lifetimes were
    checked too."""
    ran = [
        file.under(run)
        for file in files
        for run in file.runs
        if (run.model, run.mode) == (model, mode) and run.verdict != store.NOT_RUN
    ]
    if any(facts.changes == now and (mode != store.BREAKABLE or facts.lifetimes) for facts in ran):
        return CURRENT
    return STALE if ran else NOT_RUN


def durations(root: Path, gpu: str) -> dict[tuple[str, str], float]:
    """(model, mode) -> the seconds that one engine took there, the median over every release that
    ran it."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for file in store.proofs(root):
        for run in file.runs if is_of(gpu, file.gpu.name) else []:
            if run.verdict != store.NOT_RUN and run.seconds:
                seconds.setdefault((run.model, run.mode), []).append(run.seconds)
    return {key: statistics.median(values) for key, values in seconds.items()}


def _expected(took: dict[tuple[str, str], float], model: str, modes: Sequence[str]) -> int | None:
    needed = [took.get((model, mode)) for mode in (REFERENCE, *modes)]
    return None if None in needed else round(sum(needed))
