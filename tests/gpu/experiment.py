"""What the rows of the table in experiments.py are made of, and what they share.

A row plans engines in stages, and judges what they answered. run.py starts them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import commandline
import compare
import judging
import launch
import models

HERE = Path(__file__).resolve().parent
QUEUE = "queue"  # what --without leaves out where the release's own tree is the control


@dataclass
class Session:
    """One call of run.py. facts: what evidence names; known: the names of the tree's ServerArgs;
    began: when, as time.time() tells it."""

    place: launch.Place
    options: argparse.Namespace
    facts: dict
    known: set[str]
    began: float

    @functools.cached_property
    def untouched(self) -> launch.Place:
        """The same place with the release's own tree, made where it is first asked for."""
        return commandline.untouched_place(self.place, self.options)

    @functools.cached_property
    def _ports(self) -> Iterator[int]:
        return itertools.count(self.options.port_base, commandline.PORTS)

    def port(self) -> int:
        """The first of the next engine's ports."""
        return next(self._ports)

    def engine_limit(self, row: Experiment) -> float:
        """Seconds that one engine of a row may take."""
        return self.options.engine_limit or row.engine_limit

    def modes(self, row: Experiment) -> Sequence[str]:
        return self.options.mode or row.modes


@dataclass
class Plan:
    """stages: engines that run at the same time, one stage after another. left_out: what the
    release cannot run, with the reason."""

    stages: list[list[launch.Job]]
    left_out: list[dict] = field(default_factory=list)

    @property
    def jobs(self) -> list[launch.Job]:
        return [job for stage in self.stages for job in stage]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(job.plan["of"] for job in self.jobs))

    def of_model(self, model: str) -> list[launch.Job]:
        return [job for job in self.jobs if job.plan["of"] == model]


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    what: engines are asked; passes: the questions, where not each mode's own; checked: what the
    verdict rests on.
    plan: (session, row, models) -> Plan; judge: (session, row, plan) -> what is written of it, with
    "runs", each with experiment, model, verdict, why and checks. prepare: writes the checkpoints of
    the plan.
    modes: tried by default. takes: the options of run.py that it has beside those of all rows;
    controls: what --without may leave out. beside: its engines run beside those of other rows;
    width, limit, engine_limit: engines at once on a GPU, seconds of all and of one, by default.
    port: first of its engines' ports, by default. words: sglang.Engine's on top of those for all;
    ask: generate()'s words of a pass; own_sizes: the release chooses what it captures; gpus: of one
    engine.
    """

    name: str
    what: str
    models: tuple[str, ...]
    checked: str
    port: int
    plan: Callable[[Session, Experiment, Sequence[str]], Plan]
    judge: Callable[[Session, Experiment, Plan], dict]
    passes: tuple[str, ...] = ()
    prepare: Callable[[Session, Plan], None] | None = None
    modes: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    result: str = ""
    beside: bool = False
    width: int = 1
    limit: float = 540
    engine_limit: float = 300
    words: dict = field(default_factory=dict)
    ask: dict[str, dict] = field(default_factory=dict)
    own_sizes: bool = False
    gpus: int = 1

    @property
    def file(self) -> str:
        """The name of the file that its result goes into."""
        return self.result or f"{self.name}.json"


def write_models(session: Session, plan: Plan) -> None:
    """The checkpoint of each model that the plan names."""
    make_models(session.place, {name: (name, 0) for name in sorted(plan.models)})


def make_models(place: launch.Place, wanted: Mapping[str, tuple[str, int]]) -> None:
    """Write checkpoints, all at once: each takes a core, and eight of them in a row took 79 s
    beside FlashInfer's compiler. wanted: by folder the model and the seed of its weights. Raises
    RuntimeError naming those that failed."""
    words, environment = [place.python, str(HERE / "weights.py")], place.environment()
    with contextlib.ExitStack() as stack:
        making = {}
        for folder, (name, seed) in wanted.items():
            own = [str(place.scratch / "models" / folder), name, str(seed)]
            process = subprocess.Popen([*words, *own], env=environment)
            making[folder] = stack.enter_context(process)
        codes = {folder: process.wait() for folder, process in making.items()}
    if failed := [f"{folder} (exit code {code})" for folder, code in codes.items() if code]:
        raise RuntimeError(f"no weights of {', '.join(failed)}")


def unanswered(session: Session, jobs: Iterable[launch.Job]) -> list[compare.Verdict]:
    """One bad check that says why engines did not answer; none where all did."""
    failed = [job for job in jobs if job.code != 0]
    logs = [judging.log_of(session.place, job) for job in failed]
    why = [f"{job.why} {judging.error(log)}" for job, log in zip(failed, logs)]
    return [compare.Verdict("every engine answered", False, "; ".join(why))] if why else []


def otherwise(agree: Sequence[compare.Verdict], without: str) -> compare.Verdict:
    """A control that must fail: else the comparison shows nothing."""
    bad = [verdict for verdict in agree if not verdict.good]
    why = f"{bad[0].what}: {bad[0].why}" if bad else "it agrees in every pass"
    return compare.Verdict(f"answers otherwise without {without}, as it must", bool(bad), why)


def judged_run(
    row: Experiment, model: str, jobs: Sequence[launch.Job], checks: Sequence[compare.Verdict]
) -> dict:
    """One run of several engines, as it is written."""
    seconds = round(sum(job.seconds for job in jobs))
    about = {"experiment": row.name, "model": model, "seconds": seconds}
    return about | compare.verdict_of(checks)


def title(run: dict) -> str:
    """Which engine, or engines, a run is about."""
    return " ".join(run[name] for name in ("experiment", "model", "mode") if run.get(name))


def engine_job(
    session: Session, row: Experiment, name: str, model: str, mode: str, /, **plan: object
) -> launch.Job:
    """One engine. name: of its files; model: its checkpoint; plan: more of engine.py's."""
    out = session.place.out / name
    made = {
        "model": str(session.place.scratch / "models" / model),
        "of": model,
        "mode": mode,
        "port": session.port(),
        "out": f"{out}.json",
        "watch": f"{out}.watch",
        "engine": engine_words(session, model),
    }
    return launch.Job(name, HERE / "engine.py", made | plan, session.engine_limit(row))


def engine_words(session: Session, model: str) -> dict:
    """sglang.Engine's words: the attention that was asked for, unless the model has its own."""
    own = models.engine(model) if model in models.MODELS else {}
    return {"attention_backend": session.options.attention} | own
