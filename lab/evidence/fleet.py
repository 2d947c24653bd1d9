"""What a fleet of GPU hosts has to run: the proofs of every release, kind of GPU and model, as CI's
and a batch system's jobs.

The models and modes are those of the support matrix (evidence/matrix.toml): a proof that fills no
cell of it is no job.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bundle.host import Host
from bundle.host import load as load_host
from patchqueue.applying.apply import load_queue
from patchqueue.environments.testing import pinned_torch
from patchqueue.hint import to_type
from patchqueue.outcome import Problem, Refused
from patchqueue.queue.series import Queue
from patchqueue.upstream.pins import Pin

from . import cells, harness, matrix, results
from .cells import Feature
from .footprints import Validity
from .results import Row

CURRENT, SAME_FILES, STALE, NOT_RUN = "current", "same files", "stale", "not run"
DRAWN = 0.1  # the share of runs that hold for their files alone and are run again


@dataclass(frozen=True)
class Job:
    """One model on one release and kind of GPU: one call of `scripts/nox gpu`.

    modes: those that fill cells of the matrix. evidence: the worst status among them: current, same
    files, stale or not run. queue: whether the queue brings or repairs any of it, or the release
    has it all by itself. torch: what the release pins. host, host_torch: the description of hosts
    without an index that `scripts/nox bundle` packs for, and its torch.
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

    stale: only modes whose evidence is about an earlier queue, or missing. A tenth of those that
    hold for their files alone are drawn too, anew for each queue, so that a wrong footprint shows.
    Raises Refused for a model that no cell is about, and where nothing says which GPUs there are.
    """
    queue, shape = load_queue(root), cells.load(root)
    if unknown := [model for model in models if model not in shape.models]:
        step = f"one of {' '.join(shape.models)}"
        what = "is in no cell of the support matrix"
        raise Refused(Problem("no-model", unknown[0], what, step))
    rows = results.load(root)
    kinds = _labels(rows, gpus)
    found = []
    for pin in sorted(pins, key=lambda pin: pin.version, reverse=True):
        host = load_host(description, pin.version)
        kept = results.of_release(rows, pin.version, "proof")
        validity = Validity(pin.patched, harness.identity(root))
        for gpu in kinds:
            proofs = [row for row in kept if is_of(gpu, row.gpu)]
            for model in models or shape.models:
                features = [one for one in shape.features if model in one.known(pin.version)]
                modes = _modes(validity, queue, pin, model, features, proofs)
                left = {
                    mode: one
                    for mode, one in modes.items()
                    if not stale or _is_left(one[1], f"{pin.patched} {gpu} {model} {mode}")
                }
                if left:
                    found.append(_job(root, pin, host, gpu, model, left))
    return found


def _modes(
    validity: Validity,
    queue: Queue,
    pin: Pin,
    model: str,
    features: Sequence[Feature],
    proofs: Sequence[Row],
) -> dict[str, tuple[matrix.State, str]]:
    """By mode that can be: what the queue alone says of it, and how much evidence there is."""
    states = {one.mode: matrix.expected(queue, pin, one).state for one in features}
    return {
        mode: (state, _known(proofs, validity, model, mode))
        for mode, state in states.items()
        if state is not matrix.State.NOT_APPLICABLE
    }


def _labels(rows: Sequence[Row], gpus: Sequence[str]) -> list[str]:
    """The kinds of GPU that are meant: those that a proof names, where none is given. Raises
    Refused where there is none."""
    seen = sorted({row.gpu for row in rows if row.kind == "proof"})
    labels = list(dict.fromkeys(map(label, gpus or seen)))
    if labels and "" not in labels:
        return labels
    where, what = ("--gpu", "names no GPU") if labels else ("--plan", "evidence/ names no GPU yet")
    step = f"name what the fleet has: {to_type('gpu', '--plan --gpu H200')}"
    raise Refused(Problem("no-gpu-kind", where, what, step))


def _job(
    root: Path,
    pin: Pin,
    host: Host,
    gpu: str,
    model: str,
    modes: Mapping[str, tuple[matrix.State, str]],
) -> Job:
    """modes: as _modes has them."""
    least = max(
        (known for _, known in modes.values()), key=(CURRENT, SAME_FILES, STALE, NOT_RUN).index
    )
    ours = any(state is matrix.State.NOT_RUN for state, _ in modes.values())
    torches = (pinned_torch(root, pin), host.name, host.torch)
    return Job(pin.tag, gpu, model, tuple(modes), least, ours, *torches)


def label(gpu: str) -> str:
    """A GPU's name as a runner's label: "NVIDIA H100 80GB HBM3" -> "H100-80GB-HBM3"."""
    return re.sub(r"[^A-Za-z0-9]+", "-", gpu.removeprefix("NVIDIA ")).strip("-")


def is_of(label: str, gpu: str) -> bool:
    """Whether a GPU is of the kind that a label names: "H100" is any H100, and no H100 is an
    "H10"."""
    wanted, name = (results.slug(text).removeprefix("nvidia-") for text in (label, gpu))
    return name == wanted or name.startswith(f"{wanted}-")


def _is_left(known: str, seed: str) -> bool:
    """Whether a mode is to be run."""
    return known != CURRENT and (known != SAME_FILES or random.Random(seed).random() < DRAWN)


def _known(proofs: Sequence[Row], validity: Validity, model: str, mode: str) -> str:
    """What is known of one model in one mode."""
    ran = [
        row
        for row in proofs
        if (row.model, row.name) == (model, mode) and row.verdict != results.NOT_RUN
    ]
    if any(row.queue == validity.today for row in ran):
        return CURRENT
    if any(map(validity.same_files, ran)):
        return SAME_FILES
    return STALE if ran else NOT_RUN
