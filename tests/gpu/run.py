#!/usr/bin/env python3
"""Run experiments of the table on this host's GPU: `python run.py [EXPERIMENT …] --out RESULTS`.

    python run.py --out RESULTS                         the proof: every model in every graph mode
    python run.py --list                                the table
    python run.py returns sleep --out RESULTS           two rows of the table
    python run.py --out RESULTS --tree F --site F …     with these folders in front of the interpreter's own packages

Works in an unpacked bundle, or with --tree and --site. Each row's result goes into a file of its own in RESULTS
(evidence.json for the proof, else NAME.json), which is written whenever an engine has ended; a log and the answers
of every engine lie beside it. Exit code 0: every check passed.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import experiments
import harness
import judging
import kernels
import launch
import machine
import models
import modes
from experiment import Experiment, Plan, Session, title, write_models

KERNELS_S = 150  # longest wait for FlashInfer's kernels, where nothing may start before
TAKEN = ("model", "mode", "tp", "against")  # by some rows alone


@dataclass
class Planned:
    """A row of this call, and what it has planned and found."""

    row: Experiment
    plan: Plan
    found: dict


def main(words: Sequence[str] | None = None) -> int:
    options = parse(words)
    if options.list:
        print(experiments.listing())
        return 0
    # engines are ended, and what was found is written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    rows = [experiments.EXPERIMENTS[name] for name in options.experiments]
    session = begin(options, rows)
    planned = [plan(session, row) for row in rows]

    def write(complete: bool = False) -> None:
        for one in planned:
            save(session, one, complete)

    try:
        for group in groups(planned):
            perform(session, group, write)
    except BaseException:  # ended by a signal too: what was found so far stays
        write()
        raise
    write(complete=True)
    for one in planned:
        show(session, one)
    return 0 if all(one.found["passed"] for one in planned) else 1


def plan(session: Session, row: Experiment) -> Planned:
    asked = session.options.model or row.models
    return Planned(row, row.plan(session, row, asked), {})


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = commandline.parser(__doc__)
    rows = f"rows of the table (default: {experiments.PROOF}): {' '.join(experiments.EXPERIMENTS)}"
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=rows)
    table = "print the table, and run nothing"
    parser.add_argument("--list", action="store_true", help=table)
    commandline.add_place(parser, required=False)
    commandline.add_trees(parser, "as most evidence is about")
    _add_questions(parser.add_argument)
    _add_limits(parser.add_argument)
    return checked(parser, parser.parse_args(words))


def _add_questions(add: Callable) -> None:
    """What is asked, and of which engines."""
    only_asked_for = "; ".join(f"{name} ({why})" for name, why in models.ONLY_ASKED_FOR.items())
    model = f"instead of the rows' own; the proof's are all but {only_asked_for}"
    add("--model", nargs="+", choices=[*models.MODELS], help=model)
    mode = "instead of the rows' own; the reference always runs"
    add("--mode", nargs="+", choices=modes.ALL, help=mode)
    add("--without", default="", metavar="WHAT", help="a control: leave this out; see --list")
    references, both = "references of agree (default: both)", ("untouched", "release-scan")
    add("--against", nargs="+", choices=both, help=references)
    add("--tp", type=commandline.count, help="GPUs that share each model (default 1)")


def _add_limits(add: Callable) -> None:
    """Where engines run, how many at once, and how long."""
    gpus = "GPUs to spread engines over (default: all that nvidia-smi shows and"
    add("--gpus", type=commandline.count, help=f"{gpus} CUDA_VISIBLE_DEVICES allows)")
    add("--width", type=commandline.count, help="engines at once on each GPU (default: 4, or 6)")
    limit = "seconds after which nothing starts any more (default: the row's)"
    add("--limit", type=float, help=limit)
    add("--engine-limit", type=float, help="seconds that one engine may take (default: the row's)")
    port = f"first port of {commandline.PORTS} for each engine (default: the row's); runs side by"
    add("--port-base", type=int, help=f"{port} side need ranges of their own")


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """The options, with what is missing. Ends the run where a row is unknown, or does not take
    what was given."""
    options.experiments = options.experiments or [experiments.PROOF]
    for name in options.experiments:
        row = experiments.EXPERIMENTS.get(name)
        if row is None:
            parser.error(f"{name}: is no experiment; --list shows them")
        for option in TAKEN:
            if getattr(options, option) is not None and option not in row.takes:
                parser.error(f"--{option.replace('_', '-')}: {name} does not take it")
        if options.without and options.without not in row.controls:
            known = f"one of {' '.join(row.controls)}" if row.controls else "no control"
            parser.error(f"--without: {name} has {known}")
    if not options.out and not options.list:
        parser.error("the following arguments are required: --out")
    if options.port_base is None:
        options.port_base = experiments.EXPERIMENTS[options.experiments[0]].port
    return options


def begin(options: argparse.Namespace, rows: Sequence[Experiment]) -> Session:
    """What is about to run, and where. No older result of these rows stays."""
    began, place = time.time(), commandline.place_of(options)
    for row in rows:
        (place.out / row.file).unlink(missing_ok=True)
    gpus = visible(options)
    commandline.say(f"{' '.join(options.experiments)}: {len(gpus)} GPUs")
    facts = machine.describe(place, options) | {"gpus": len(gpus), "harness": harness.identity()}
    facts |= commandline.other_attention(options)
    gpu, torch = facts["gpu"], facts["torch"]["version"]
    where = f"{len(gpus)} x {gpu['name']}, driver {gpu['driver']}, torch {torch}"
    commandline.say(f"{facts['version']} ({machine.queue_of(facts)}) on {where}")
    return Session(place, options, facts, commandline.fields(options), began)


def visible(options: argparse.Namespace) -> list[machine.Gpu]:
    """The GPUs to use: those of the first one's kind."""
    seen = machine.visible()
    return [one for one in seen if one.name == seen[0].name][: options.gpus]


def groups(planned: Sequence[Planned]) -> list[list[Planned]]:
    """What runs together: rows whose engines may run beside others, but for the proof, which has
    limits of its own; then each other row by itself."""
    beside = [one for one in planned if one.row.beside and one.row.name != experiments.PROOF]
    alone = [[one] for one in planned if one not in beside]
    return [beside, *alone] if beside else alone


def perform(session: Session, group: Sequence[Planned], write: Callable[[], None]) -> None:
    """Run the engines of some rows. One that is alone begins when nothing is compiled any more."""
    gpus = [gpu.use for gpu in visible(session.options)]
    with kernels.made_ahead(session.place, gpus[0], session.options.attention) as compiling:
        for one in group:
            (one.row.prepare or write_models)(session, one.plan)
        if group[0].row.beside:
            return run_stages(session, group, gpus, write)
        kernels.wait(compiling, time.time() + KERNELS_S)
    return run_stages(session, group, gpus, write)


def run_stages(
    session: Session, group: Sequence[Planned], gpus: Sequence[str], write: Callable[[], None]
) -> None:
    """Run the engines of rows: of rows that run beside each other all at once, till the limit of
    all; else one stage after the other, on the first GPUs. First what takes one GPU, then what
    takes more."""
    options, row, stages = session.options, group[0].row, group[0].plan.stages
    if row.beside:
        jobs = [job for one in group for job in one.plan.jobs]
        stages = [jobs]
    for stage in stages:
        for devices, here in by_gpus(stage, gpus):
            width, deadline = len(here), time.time() + len(here) * session.engine_limit(row)
            if row.beside:
                width = options.width or row.width
                deadline = session.began + (options.limit or row.limit)
            launch.run_all(
                session.place,
                here,
                width,
                deadline,
                commandline.say,
                lead=row.beside,
                devices=devices if row.beside else devices[:1],
                ended=write,
            )


def by_gpus(
    jobs: Sequence[launch.Job], gpus: Sequence[str]
) -> list[tuple[list[str], list[launch.Job]]]:
    """What runs on one GPU, and then what runs on several, each with its devices."""
    found = []
    for count in sorted({job.plan.get("gpus", 1) for job in jobs}):
        here = [job for job in jobs if job.plan.get("gpus", 1) == count]
        devices = [",".join(gpus[at : at + count]) for at in range(0, len(gpus) - count + 1, count)]
        if not devices:
            for job in here:
                job.why = f"it needs {count} GPUs, {len(gpus)} can be used"
            continue
        found.append((devices, here))
    return found


def save(session: Session, one: Planned, complete: bool) -> None:
    """Write what was found of a row, whole or not at all."""
    one.found |= one.row.judge(session, one.row, one.plan)
    runs, options = one.found.get("runs", []), session.options
    one.found["seconds"] = round(time.time() - session.began)
    one.found["passed"] = bool(complete) and all(run["verdict"] in judging.GOOD for run in runs)
    facts = session.facts | one.found
    if one.row.name != experiments.PROOF:
        facts |= {"experiment": one.row.name, "without": options.without, "tp": options.tp or 1}
        facts["checks"] = [check for run in runs for check in run["checks"]]
    part = session.place.out / f"{one.row.file}.part"
    part.write_text(json.dumps(facts, indent=1) + "\n")
    part.replace(session.place.out / one.row.file)


def show(session: Session, one: Planned) -> None:
    """Every check of a row's runs, and a line in the end."""
    runs = one.found["runs"]
    jobs = {(job.plan["of"], job.plan["mode"]): job for job in one.plan.jobs}
    for run in runs:
        why = f" - {run['why']}" if run["why"] else ""
        took = f"({run['seconds']} s, start {run.get('start_s', '?')} s)"
        print(f"\n{title(run)}: {run['verdict']}{why} {took}")
        for note in run.get("notes", []):
            print(f"  {note}")
        for check in run["checks"]:
            print(f"  {'ok  ' if check['good'] else 'FAIL'} {check['what']}: {check['why']}")
        for entry in run.get("captured", []):
            print(f"       {entry['what']}: {entry['seconds']} s, {entry['gb']} GB")
        job = jobs.get((run["model"], run.get("mode")))
        if run["verdict"] == "failed" and not run["checks"] and job:
            words = launch.last_words(session.place, job).splitlines()
            print("\n".join(f"    | {line[:220]}" for line in words))
    counts = Counter(run["verdict"] for run in runs)
    counted = "".join(f"{count} {name}, " for name, count in counts.items())
    without = f" without {session.options.without}" if session.options.without else ""
    where = f"{session.facts['tag']} on {session.facts['gpu']['name']}, {one.row.name}{without}"
    print(f"\n{where}: {counted or ', '}{one.found['seconds']} s")


if __name__ == "__main__":
    raise SystemExit(main())
