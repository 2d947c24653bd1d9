#!/usr/bin/env python3
"""Prove a patched release on this host's GPU: every model in every graph mode against eager
prefill.

    python run.py --out RESULTS                         in an unpacked bundle
    python run.py --out RESULTS --tree F --site F …     with these folders in front of the interpreter's own packages

Writes RESULTS/evidence.json whenever an engine has ended, and a log and the answers of every engine
beside it. Exit code 0: every check passed.
"""  # noqa: E501

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import forkserver
import harness
import judging
import kernels
import launch
import machine
import models
import modes

HERE = Path(__file__).resolve().parent
RESULT = "evidence.json"


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    # engines are ended, and what was found is written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    place = commandline.place_of(options)
    (place.out / RESULT).unlink(missing_ok=True)
    began = time.time()
    seen = machine.visible()
    gpus = [one for one in seen if one.name == seen[0].name][: options.gpus]
    commandline.say(
        f"models: {' '.join(options.model)}; modes: {' '.join(options.mode)}; {len(gpus)} GPUs,"
        f" {options.width} engines at once on each"
    )
    facts = machine.describe(place, options) | {"gpus": len(gpus), "harness": harness.identity()}
    facts |= commandline.other_attention(options)
    commandline.say(
        f"{facts['version']} ({machine.queue_of(facts)}) on {len(gpus)} x"
        f" {facts['gpu']['name']}, driver {facts['gpu']['driver']}, torch"
        f" {facts['torch']['version']}"
    )
    known = commandline.fields(options)
    for why, without in left_out(options, facts["patches"]).items():
        commandline.say(f"left out, because {why}: {' '.join(without)}")
        options.model = [model for model in options.model if model not in without]
    if not options.model:
        sys.exit("no model is left: nothing would be proven")
    jobs = [
        job(place, options, known, number, model, mode)
        for number, (model, mode) in enumerate(wanted(options, known))
    ]

    def write(complete: bool = False) -> None:
        facts["runs"] = [judging.judge(place, one, jobs) for one in jobs]
        facts["loaded"], own = judging.notes(jobs)
        for run, notes in zip(facts["runs"], own, strict=True):
            run["loaded"] = notes
        facts["seconds"] = round(time.time() - began)
        facts["passed"] = complete and all(run["verdict"] in judging.GOOD for run in facts["runs"])
        part = place.out / f"{RESULT}.part"
        part.write_text(json.dumps(facts, indent=1) + "\n")
        part.replace(place.out / RESULT)

    try:
        with (
            kernels.made_ahead(place, gpus[0].use, options.attention),
            forks(place, options) as server,
        ):
            make_models(place, options.model)
            server = ready(server)
            launch.run_all(
                place,
                jobs,
                options.width,
                began + options.limit,
                commandline.say,
                devices=[one.use for one in gpus],
                ended=write,
                server=server,
            )
    except BaseException:  # ended by a signal too: what was found so far stays
        write()
        raise
    write(complete=True)
    show(facts, place, jobs)
    return 0 if facts["passed"] else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    left_out = "; ".join(f"{name} ({why})" for name, why in models.ONLY_ASKED_FOR.items())
    parser.add_argument(
        "--model",
        nargs="+",
        choices=[*models.MODELS],
        default=[*models.DEFAULT],
        help=f"default: all but {left_out}",
    )
    parser.add_argument(
        "--mode",
        nargs="+",
        choices=modes.ALL,
        default=[*modes.ALL],
        help="the reference always runs",
    )
    commandline.add_attention(parser, "as most evidence is about")
    parser.add_argument(
        "--gpus",
        type=commandline.count,
        help=(
            "GPUs to spread engines over (default: all that nvidia-smi shows and"
            " CUDA_VISIBLE_DEVICES allows)"
        ),
    )
    parser.add_argument(
        "--width", type=commandline.count, default=4, help="engines at once on each GPU (default 4)"
    )
    parser.add_argument(
        "--limit", type=float, default=1500, help="seconds after which nothing starts any more"
    )
    parser.add_argument(
        "--engine-limit",
        type=float,
        default=420,
        help="seconds that one engine may take (default 420)",
    )
    parser.add_argument(
        "--no-fork",
        action="store_true",
        help="start every engine from nothing, instead of forking a process that has imported its"
        " packages",
    )
    parser.add_argument(
        "--port-base",
        type=int,
        default=21000,
        help=(
            f"first port of {commandline.PORTS} for each engine (default 21000); runs side by side"
            " need ranges of their own"
        ),
    )
    return parser.parse_args(words)


def left_out(options: argparse.Namespace, patches: Sequence[dict]) -> dict[str, list[str]]:
    """Why this tree cannot run models that were asked for, and which; nothing where it can."""
    asked, found = {name: models.MODELS[name] for name in sorted(options.model)}, {}
    sparse = [name for name, config in asked.items() if models.is_sparse(config)]
    if sparse and not commandline.takes_sparse(options, patches):
        found["sparse attention cannot run in this tree's graph"] = sparse
    experts = [
        name for name, config in asked.items() if "E" in config.get("hybrid_override_pattern", "")
    ]
    if experts and not commandline.knows_experts(options):
        found["this tree's NemotronH has no experts"] = experts
    return found


def wanted(options: argparse.Namespace, known: set[str]) -> list[tuple[str, str]]:
    """(model, mode), every model's references first; engines of one model apart, so that equal
    kernels are compiled once."""
    tried = [mode for mode in modes.ALL if mode in options.mode and mode not in modes.REFERENCES]
    needed = {modes.reference(mode, known) for mode in tried} or {modes.REFERENCE}
    return [
        (model, mode)
        for mode in modes.ALL
        if mode in needed or mode in tried
        for model in options.model
        if runs(model, mode, known)
    ]


def runs(model: str, mode: str, known: set[str]) -> bool:
    """Whether a mode is for a model. Sparse attention is let into the piecewise graph alone, with
    the eager compiler alone. Drafts want every token's hidden state, for which no piecewise graph
    is captured, and none is of a model in models.BREAKABLE_ALONE."""
    if model in models.BREAKABLE_ALONE and not modes.has_breakable(known):
        return False
    if models.has_drafts(model) or model in models.BREAKABLE_ALONE:
        return mode in (modes.reference(modes.BREAKABLE, known), modes.BREAKABLE, modes.EAGER)
    return mode in (modes.REFERENCE, modes.PIECEWISE, modes.EAGER) or not models.is_sparse(
        models.MODELS[model]
    )


def job(
    place: launch.Place,
    options: argparse.Namespace,
    known: set[str],
    number: int,
    model: str,
    mode: str,
) -> launch.Job:
    name = f"{model}.{mode}"
    reference = mode in modes.REFERENCES
    plan = {
        "model": str(place.scratch / "models" / model),
        "mode": mode,
        "port": options.port_base + commandline.PORTS * number,
        "out": str(place.out / f"{name}.json"),
        "watch": str(place.out / f"{name}.watch"),
        "enforce": commandline.enforced(model),
        "keep_eager": reference,
        "files": True,
        "breakable": not models.is_sparse(models.MODELS[model]),
        "piecewise": model not in models.BREAKABLE_ALONE,
        "logprobs": commandline.serves_logprobs(options, mode),
        # schedulers that wait for requests took 7 of 26 cores from engines that start
        "engine": {"sleep_on_idle": True, "attention_backend": options.attention}
        | models.engine(model),  # which may have its own attention
    }
    return launch.Job(
        name,
        HERE / "engine.py",
        plan,
        options.engine_limit,
        "" if reference else f"{model}.{modes.reference(mode, known)}",
        models.MODELS[model]["model_type"],
    )


@contextlib.contextmanager
def forks(
    place: launch.Place, options: argparse.Namespace
) -> Iterator[forkserver.ForkServer | None]:
    """The server that engines are forked from, which begins to import; None with --no-fork."""
    if options.no_fork:
        yield None
        return
    with contextlib.closing(
        forkserver.ForkServer(
            place.python, place.environment(PREFILL_FILES="1"), place.out / "forkserver.log"
        )
    ) as server:
        yield server


def ready(server: forkserver.ForkServer | None) -> forkserver.ForkServer | None:
    """The server once it has imported; None, and the reason said, where it cannot be forked."""
    if server is None:
        return None
    try:
        commandline.say(f"engines are forked from a process with {server.wait()}")
    except forkserver.Unready as reason:
        commandline.say(f"every engine starts from nothing: {reason}")
        return None
    return server


def make_models(place: launch.Place, names: Sequence[str]) -> None:
    """Write every model's weights, all at once: each takes a core, and eight of them in a row took
    79 s beside FlashInfer's compiler. Raises RuntimeError naming those that failed."""
    words = [place.python, str(HERE / "models.py"), str(place.scratch / "models")]
    environment = place.environment()
    with contextlib.ExitStack() as stack:
        making = {
            name: stack.enter_context(subprocess.Popen([*words, name], env=environment))
            for name in names
        }
        codes = {name: process.wait() for name, process in making.items()}
    if failed := [f"{name} (exit code {code})" for name, code in codes.items() if code]:
        raise RuntimeError(f"no weights of {', '.join(failed)}")


def show(facts: dict, place: launch.Place, jobs: Sequence[launch.Job]) -> None:
    for run, one in zip(facts["runs"], jobs):
        print(
            f"\n{run['model']} {run['mode']}:"
            f" {run['verdict']}{' - ' + run['why'] if run['why'] else ''} ({run['seconds']} s,"
            f" start {run.get('start_s', '?')} s)"
        )
        for check in run["checks"]:
            print(f"  {'ok  ' if check['good'] else 'FAIL'} {check['what']}: {check['why']}")
        for entry in run["captured"]:
            print(f"       {entry['what']}: {entry['seconds']} s, {entry['gb']} GB")
        if run["verdict"] == "failed" and not run["checks"]:
            print(
                "\n".join(
                    f"    | {line[:220]}" for line in launch.last_words(place, one).splitlines()
                )
            )
    counts = [run["verdict"] for run in facts["runs"]]
    print(
        f"\n{facts['tag']} on {facts['gpu']['name']}: "
        + ", ".join(f"{counts.count(name)} {name}" for name in dict.fromkeys(counts))
        + f", {facts['seconds']} s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
