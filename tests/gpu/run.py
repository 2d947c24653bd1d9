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
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases
import compare
import harness
import kernels
import launch
import models
import modes
import record

HERE = Path(__file__).resolve().parent
SCHEMA, RESULT = 1, "evidence.json"
GOOD = ("passed", "not applicable")
PORTS = 20  # of each engine: the first for its server, the second for its process group
# the releases' own line, and that of the queue's runners (_keep, breakable/runner.py)
CAPTURED = re.compile(
    r"(?:Capture (?P<what>[^.\n]*?graph[^.\n]*?) end\..*?elapsed[:=]"
    r"|Captured the (?P<ours>[^.\n]*?graph) in)"
    r"\s*(?P<s>[\d.]+).*?mem usage=(?P<gb>-?[\d.]+)",
    re.I,
)
# the latter: lifetimes.py's exit code where there is no graph with breaks
LIFETIMES_S, NO_PRIMITIVE = (120, 3)
NO_REFERENCE = "its reference did not run"
WHY_OFF = re.compile(
    r"(?:Disable|Disabling|disabled).*(?:piecewise|breakable|prefill).*|.*prefill graph.*", re.I
)


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    # engines are ended, and what was found is written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    place = place_of(options)
    (place.out / RESULT).unlink(missing_ok=True)
    began = time.time()
    seen = visible()
    gpus = [one for one in seen if one.name == seen[0].name][: options.gpus]
    say(
        f"models: {' '.join(options.model)}; modes: {' '.join(options.mode)}; {len(gpus)} GPUs,"
        f" {options.width} engines at once on each"
    )
    facts = describe(place, options) | {"gpus": len(gpus), "harness": harness.identity()}
    facts |= other_attention(options)
    say(
        f"{facts['version']} ({queue_of(facts)}) on {len(gpus)} x"
        f" {facts['gpu']['name']}, driver {facts['gpu']['driver']}, torch"
        f" {facts['torch']['version']}"
    )
    known = fields(options)
    if (
        without := {model for model in options.model if models.is_sparse(models.MODELS[model])}
    ) and not takes_sparse(options, facts["patches"]):
        say(
            "left out, because sparse attention cannot run in this tree's graph:"
            f" {' '.join(sorted(without))}"
        )
        options.model = [model for model in options.model if model not in without]
    jobs = [
        job(place, options, known, number, model, mode)
        for number, (model, mode) in enumerate(wanted(options, known))
    ]

    def write(complete: bool = False) -> None:
        facts["runs"] = [judge(place, one, jobs) for one in jobs]
        facts["seconds"] = round(time.time() - began)
        facts["passed"] = complete and all(
            run["verdict"] in GOOD
            for run in [*facts["runs"], facts.get("lifetimes", {"verdict": GOOD[0]})]
        )
        part = place.out / f"{RESULT}.part"
        part.write_text(json.dumps(facts, indent=1) + "\n")
        part.replace(place.out / RESULT)

    try:
        with kernels.made_ahead(place, gpus[0].use, options.attention):
            make_models(place, options.model)
            launch.run_all(
                place,
                jobs,
                options.width,
                began + options.limit,
                say,
                devices=[one.use for one in gpus],
                ended=write,
            )
        if modes.BREAKABLE in options.mode:
            facts["lifetimes"] = lifetimes(place, gpus[0].use)
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
    add_place(parser)
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
    add_attention(parser, "as most evidence is about")
    parser.add_argument(
        "--gpus",
        type=_count,
        help=(
            "GPUs to spread engines over (default: all that nvidia-smi shows and"
            " CUDA_VISIBLE_DEVICES allows)"
        ),
    )
    parser.add_argument(
        "--width", type=_count, default=4, help="engines at once on each GPU (default 4)"
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
        "--port-base",
        type=int,
        default=21000,
        help=(
            f"first port of {PORTS} for each engine (default 21000); runs side by side need ranges"
            " of their own"
        ),
    )
    return parser.parse_args(words)


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is no number of 1 or more")
    return int(word)


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that place_of reads."""
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument(
        "--tree",
        type=Path,
        help="the folder that holds the patched sglang/ (default: the bundle's tree/)",
    )
    parser.add_argument(
        "--site",
        type=Path,
        action="append",
        help=(
            "a folder of packages, or an unpacked bundle (default: the bundle around this file; may"
            " be given again)"
        ),
    )


def add_untouched(parser: argparse.ArgumentParser) -> None:
    """The option that untouched.make's folder comes from, for scripts that also run the release's
    own tree."""
    parser.add_argument(
        "--untouched",
        type=Path,
        metavar="FOLDER",
        help="what makes the release's own tree (default: the bundle's untouched/)",
    )


def add_attention(parser: argparse.ArgumentParser, why: str) -> None:
    """The option that names an engine's attention kernels; a model with sparse attention has its
    own. why: of its default."""
    usual, other = kernels.ATTENTION
    parser.add_argument(
        "--attention",
        choices=kernels.ATTENTION,
        default=usual,
        help=f"default {usual}, {why}; {other}, which servers choose by themselves on Hopper, wants"
        " a bundle made with --flash",
    )


def other_attention(options: argparse.Namespace) -> dict:
    """What a result says of its attention kernels: nothing where they are the usual ones."""
    usual = options.attention == kernels.FLASHINFER
    return {} if usual else {"attention": options.attention}


def add_port_base(parser: argparse.ArgumentParser, first: int) -> None:
    """first: of the ports, by default. Scripts that run side by side need ranges of their own."""
    parser.add_argument(
        "--port-base",
        type=int,
        default=first,
        help=f"first of the engines' ports (default {first})",
    )


def place_of(options: argparse.Namespace) -> launch.Place:
    """Where things lie: the options, else the unpacked bundle around this file."""
    bundle = HERE.parents[1]
    tree = options.tree or bundle / "tree"
    sites = sites_of(options)
    # the host's own description of gaps first, then the tree, so that nothing in a folder of
    # packages hides it
    head = [folder for folder in sites if (folder / "sitecustomize.py").is_file()]
    path = [HERE / "watch", *head, tree, *(folder for folder in sites if folder not in head)]
    place = launch.Place(tuple(folder.absolute() for folder in path), options.out.absolute())
    place.scratch.mkdir(parents=True, exist_ok=True)
    return place


def sites_of(options: argparse.Namespace) -> list[Path]:
    """The folders of packages. One that holds hostsite/ and site/, as an unpacked bundle does,
    stands for these."""
    found = []
    for folder in options.site or [HERE.parents[1]]:
        inner = [folder / name for name in ("hostsite", "site") if (folder / name).is_dir()]
        found += inner or ([folder] if options.site else [])
    return found


def manifest_of(options: argparse.Namespace) -> dict:
    """What the bundle around this file, or around a folder of packages, says about itself; {} where
    there is none."""
    near = [
        HERE.parents[1],
        *(folder for site in options.site or [] for folder in (site, site.parent)),
    ]
    found = [folder / "manifest.json" for folder in near if (folder / "manifest.json").is_file()]
    return json.loads(found[0].read_text()) if found else {}


def fields(options: argparse.Namespace) -> set[str]:
    """The names of the tree's ServerArgs, read and not imported: that takes half a minute."""
    srt = _srt(options)
    files = [srt / "server_args.py", *srt.glob("arg_groups/fields/*.py")]  # the latter from 0.5.20
    return {
        name
        for file in files
        for name in re.findall(r"(?m)^ +(\w+): ", file.read_text(encoding="utf-8"))
    }


def takes_sparse(options: argparse.Namespace, patches: Sequence[dict]) -> bool:
    """Whether sparse attention can run in the tree's graph: where the queue brings that, and from
    0.5.13, whose attention op knows of a selection. There it asks for FlashAttention 3, which a
    bundle may say that it has trimmed."""
    if any(patch["name"].startswith("nsa/split-indexer-and-attention") for patch in patches):
        return True
    file = _srt(options) / "layers/radix_attention.py"
    trimmed = [
        pattern for one in manifest_of(options).get("trimmed", []) for pattern in one["patterns"]
    ]
    return (
        file.is_file()
        and "topk_indices" in file.read_text(encoding="utf-8")
        and not any("flash_ops" in pattern for pattern in trimmed)
    )


def _srt(options: argparse.Namespace) -> Path:
    return (options.tree or HERE.parents[1] / "tree") / "sglang/srt"


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


def serves_logprobs(options: argparse.Namespace, mode: str) -> bool:
    """Whether the mode's graph runs prefills whose log-probabilities are wanted. From 0.5.16 on a
    piecewise one never does: what follows its layers is captured too (can_run_graph,
    model_executor/runner/prefill_cuda_graph_runner.py:707 in 0.5.16)."""
    file = _srt(options) / "model_executor/runner/prefill_cuda_graph_runner.py"
    if mode not in (modes.PIECEWISE, modes.INDUCTOR) or not file.is_file():
        return True
    return "_uses_eager_prefill_tail" not in file.read_text(encoding="utf-8")


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
        "port": options.port_base + PORTS * number,
        "out": str(place.out / f"{name}.json"),
        "watch": str(place.out / f"{name}.watch"),
        "enforce": model.startswith("qwen3-next"),
        "keep_eager": reference,
        "breakable": not models.is_sparse(models.MODELS[model]),
        "piecewise": model not in models.BREAKABLE_ALONE,
        "logprobs": serves_logprobs(options, mode),
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


def describe(place: launch.Place, options: argparse.Namespace) -> dict:
    """What is about to run, and where: everything that evidence must name."""
    tree = options.tree or HERE.parents[1] / "tree"
    made, untouched = record.identity(tree)
    bundle = manifest_of(options)
    torch = place.ask(
        "import json, torch; print(json.dumps({'version': torch.__version__, 'cuda':"
        " torch.version.cuda, 'python': __import__('platform').python_version()}))"
    )
    pinned = record.torch_pin(tree)
    return {
        "schema": SCHEMA,
        "version": made["version"],
        "tag": made["tag"],
        "queue_release": made.get("release"),
        "queue": made["queue"],
        "changes": made["changes"],
        "tree": made["tree"]["after"],
        "tree_untouched": untouched,
        "patches": made["patches"],
        "overlay": made.get("overlay", []),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "gpu": gpu(),
        "torch": {
            "version": torch["version"],
            "cuda": torch["cuda"],
            "pinned": pinned,
            "off_pin": torch["version"].split("+")[0] != pinned,
        },
        "python": torch["python"],
        "kernel": bundle.get("kernel"),
        "shims": bundle.get("shims", []),
        "dependencies_of": bundle.get("dependencies_of"),
        "packages": [
            line
            for line in bundle.get("packages", [])
            if line.startswith(("flashinfer", "sgl", "transformers", "apache-tvm"))
        ],
        "capture": list(cases.CAPTURE),
        "chunk": cases.CHUNK,
        "tolerance": {
            "far": compare.TOLERANCE,
            "tie": compare.TIE,
            "strict": asdict(compare.STRICT),
            "routed": asdict(compare.ROUTED),
        },
    }


def queue_of(facts: dict) -> str:
    """Which queue a tree was made by, in words."""
    return f"queue {facts['queue_release']}" if facts["queue"] else "made by no queue"


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi. use: what CUDA_VISIBLE_DEVICES calls it."""

    use: str
    name: str
    driver: str
    memory_mib: int
    compute_capability: str


def visible() -> list[Gpu]:
    """The GPUs that this process may use, in CUDA_VISIBLE_DEVICES's order where it is set. Ends the
    run where there is none."""
    words = [
        "nvidia-smi",
        "--query-gpu=index,uuid,name,driver_version,memory.total,compute_cap",
        "--format=csv,noheader,nounits",
    ]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU to run on: nvidia-smi cannot be asked ({error})")
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        [row[0] for row in rows]
        if allowed is None
        else [name.strip() for name in allowed.split(",") if name.strip()]
    )
    found = [
        (name, row)
        for name in names
        for row in rows
        if name == row[0] or (len(name) > 4 and row[1].startswith(name))
    ]
    if not found:
        sys.exit(
            f"no GPU to run on: nvidia-smi shows {len(rows)}, CUDA_VISIBLE_DEVICES is {allowed}"
        )
    return [Gpu(name, row[2], row[3], int(row[4]), row[5]) for name, row in found]


def gpu() -> dict:
    """The first GPU at hand, as evidence names it."""
    facts = asdict(visible()[0])
    facts.pop("use")
    return facts


def lifetimes(place: launch.Place, device: str) -> dict:
    """What lifetimes.py finds: whether a graph with breaks keeps what these read and write, and no
    more than that."""
    out = place.out / "lifetimes.json"
    out.unlink(missing_ok=True)
    words = [place.python, str(HERE / "lifetimes.py"), "--out", str(out)]
    try:
        done = subprocess.run(
            words,
            env=place.environment(CUDA_VISIBLE_DEVICES=device),
            cwd=place.out,
            capture_output=True,
            text=True,
            timeout=LIFETIMES_S,
        )
    except subprocess.TimeoutExpired:
        return {"verdict": "failed", "why": f"no answer in {LIFETIMES_S} s", "checks": []}
    if not out.is_file():
        if done.returncode == NO_PRIMITIVE:
            return {"verdict": "not applicable", "why": done.stderr.strip()[-300:], "checks": []}
        return {"verdict": "failed", "why": error(done.stderr), "checks": []}
    checks = json.loads(out.read_text())["checks"]
    bad = [check for check in checks if not check["good"]]
    return {
        "verdict": "failed" if bad else "passed",
        "why": f"{bad[0]['what']}: {bad[0]['why']}" if bad else "",
        "checks": checks,
    }


def judge(place: launch.Place, one: launch.Job, jobs: Sequence[launch.Job]) -> dict:
    """One engine's result with all its verdicts."""
    model, mode = one.name.split(".", 1)
    run = {
        "model": model,
        "mode": mode,
        "device": one.device,
        "seconds": round(one.seconds),
        "verdict": "not run",
        "why": one.why,
        "checks": [],
    }
    log = (
        (place.out / f"{one.name}.log").read_text(errors="replace") if one.code is not None else ""
    )
    run["captured"] = [asdict(found) for found in captures(log)]
    said = [
        line.strip()[-300:]
        for line in log.splitlines()
        if "server_args=" not in line and WHY_OFF.search(line)
    ]
    run["said"] = list(dict.fromkeys(said))[:6]
    if one.code != 0:
        reason = re.search(r"(?m)^not applicable: (.*)$", log)
        if one.code is not None:
            run |= (
                {"verdict": "not applicable", "why": reason[1]}
                if reason
                else {"verdict": "failed", "why": f"{one.why}: {error(log)}"}
            )
        return run
    result = json.loads(Path(one.plan["out"]).read_text())
    reference = next((other for other in jobs if other.name == one.needs and other.code == 0), None)
    verdicts = checks(
        model,
        mode,
        result | {"captured": run["captured"]},
        json.loads(Path(reference.plan["out"]).read_text()) if reference else None,
    )
    run |= {
        "start_s": result["start_s"],
        "pass_s": result["pass_s"],
        "flags": result["flags"],
        "dropped_flags": result["dropped_flags"],
        "report": result["report"],
    }
    run["checks"] = [verdict.as_json() for verdict in verdicts]
    bad = [verdict for verdict in verdicts if not verdict.good]
    if bad:
        return run | {"verdict": "failed", "why": f"{bad[0].what}: {bad[0].why}"}
    return run | (
        {"verdict": "not run", "why": NO_REFERENCE}
        if one.needs and not reference
        else {"verdict": "passed", "why": ""}
    )


@dataclass(frozen=True)
class Capture:
    """What a release says when it has captured graphs: of which kind, in how many seconds, and what
    memory they took."""

    what: str
    seconds: float
    gb: float


def captures(log: str) -> list[Capture]:
    """Every capture that a log tells of. Memory counts the whole GPU: with engines side by side it
    says nothing."""
    return [
        Capture(found["what"] or found["ours"], float(found["s"]), float(found["gb"]))
        for found in CAPTURED.finditer(log)
    ]


def error(log: str) -> str:
    """The last line of a log that looks like the reason."""
    lines = [
        line for line in log.splitlines() if re.search(r"(Error|Exception|Killed|assert)", line)
    ]
    return lines[-1].strip()[:300] if lines else "no word of why"


def checks(model: str, mode: str, result: dict, reference: dict | None) -> list[compare.Verdict]:
    """What one engine's answers must stand up to. reference: the same model's reference result;
    without it agreement is left out."""
    passes, made = result["passes"], cases.calls()
    in_cache = {
        name: answers
        for name, answers in passes.items()
        if name in (cases.COLD, cases.AGAIN, cases.WARM)
    }
    several = [
        count for count in cases.REQUESTS if 1 < count <= cases.CHUNK // models.page_size(model)
    ]
    found = [
        compare.graph_used(result["prefills"], list(cases.CAPTURE), mode in modes.GRAPHS, several),
        compare.hits(in_cache),
        compare.emptied(passes),
    ]
    found.append(compare.flags_known(result["flags"], result["dropped_flags"]))
    router = models.has_router(models.MODELS[model])
    limits = compare.STRICT
    if mode in modes.REFERENCES:
        itself = compare.against_itself(control(passes), router)
        report = [
            server
            for server in (result["report"] or {}).get("servers", [])
            if Path(str(server.get("model", ""))).name == model
        ]
        found += [
            compare.has_graph(result["captured"], report),
            compare.varied(passes[cases.COLD]),
            compare.remembers(passes[cases.COLD], cases.memory_pairs(made)),
            itself,
        ]
    elif reference:
        graph, kept = mode in modes.GRAPHS, reference["passes"]
        limits = (
            compare.limits(router, mode == modes.INDUCTOR, control(kept))
            if graph
            else compare.without(router)
        )
        first = {
            call: (passes[name][call], kept[name][call])
            for name in (cases.COLD, cases.SIZES)
            for call in kept[name]
        }
        mine, right = ({call: pair[side] for call, pair in first.items()} for side in (0, 1))
        found.append(
            compare.same_answers(
                "agrees with eager prefill, cold, and every size after every other",
                mine,
                right,
                limits,
            )
        )
        for name in (name for name in passes if name not in (cases.COLD, cases.SIZES)):
            found.append(
                compare.same_answers(
                    f"agrees with eager prefill, {name}",
                    passes[name],
                    kept[cases.COLD if name == cases.AGAIN else name],
                    limits,
                )
            )
    if mode in modes.GRAPHS and compare.reports(result.get("report")):
        found.append(compare.reported(result["report"], model))
    if cases.AGAIN in passes and reference:
        found.append(
            compare.same_answers(
                "answers the same when asked again", passes[cases.AGAIN], passes[cases.COLD], limits
            )
        )
    return found


def control(passes: dict) -> compare.Tally:
    """Eager prefill against itself: the prompts of batches asked alone, and every prompt behind its
    cached beginning."""
    cold, by_itself = passes[cases.COLD], cases.gathered(passes[cases.ALONE], cases.calls())
    return compare.tally(
        (by_itself, {name: cold[name] for name in by_itself}), (passes[cases.WARM], cold)
    )


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
    if "lifetimes" in facts:
        print(
            f"\nlifetimes of what breaks read and write: {facts['lifetimes']['verdict']}"
            f" {facts['lifetimes']['why']}"
        )
    counts = [run["verdict"] for run in facts["runs"]]
    print(
        f"\n{facts['tag']} on {facts['gpu']['name']}: "
        + ", ".join(f"{counts.count(name)} {name}" for name in dict.fromkeys(counts))
        + f", {facts['seconds']} s"
    )


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
