"""`--require` beside real engines, as a start script asks it.

A patched engine starts, and is asked for until it has answered prompts; its counts must name them.
Then an engine of the release's own tree joins it, and in the end both are gone. Every exit code
must be the one that docs/operate.md names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cases
import compare
import experiment
import launch
import modes
from experiment import HERE, Experiment, Session

MODEL = "nemotron-h"
POLL_S, COUNTS_S = 2.0, 7.0
RUNS, OTHER, UNREADY, NONE = 0, 1, 3, 4  # exit codes of --require, as docs/operate.md lists them
# beside another engine, and without a prefix cache: a cached prompt is prefilled for its last token
ENGINE = dict(mem_fraction_static=0.3, max_total_tokens=16384, disable_radix_cache=True)
PROMPTS, TOKENS = 6, 40  # prompts of 40, 80, … tokens, one after the other


@dataclass(frozen=True)
class Asked:
    """One question: when, in seconds of the run, the exit code, and what was printed."""

    at: float
    code: int
    said: str


def act(session: Session, row: Experiment) -> dict:
    experiment.make_models(session.place, [MODEL])
    seen = _seen(session, session.engine_limit(row), _listing(session.place))
    return {"seen": seen, "runs": [experiment.judged(row, MODEL, [], judged(seen))]}


def _seen(session: Session, limit_s: float, tree: str) -> dict:
    """What was asked at each stage, in the order of `judged`."""
    place, own, began = session.place, session.untouched, time.time()

    def ask(wanted: str = tree, *more: str) -> dict:
        return vars(_require(place, wanted, more, began))

    seen: dict = {"before": ask()}
    with _server(place, "patched", session.port()) as patched:
        seen["starting"] = _until_answered(patched, place.out / "patched.json", limit_s, ask)
        seen["ready"], seen["another tree"] = ask(), ask("sha256:" + "0" * 64)
        time.sleep(COUNTS_S)  # counts are written each 5 s
        seen["counts"] = json.loads(_module(place, "--json").stdout)["servers"]
        with _server(own, "untouched", session.port()) as untouched:
            _until_answered(untouched, place.out / "untouched.json", limit_s, ask)
            seen["beside an unpatched one"] = ask()
            seen["of one server"] = ask(tree, "--pid", str(patched.pid))
            seen["of the other"] = ask(tree, "--pid", str(untouched.pid))
    time.sleep(POLL_S)
    return seen | {"after": ask()}


def prompts(seed: int = 41) -> list[list[int]]:
    """Token ids, each prompt longer than the one before."""
    source = random.Random(seed)
    return [
        [source.randrange(cases.SMALLEST, cases.LARGEST) for _ in range(TOKENS * (number + 1))]
        for number in range(PROMPTS)
    ]


@contextlib.contextmanager
def _server(place: launch.Place, name: str, port: int) -> Iterator[subprocess.Popen]:
    """An engine as a trainer starts it, with a small model; ended with all that it started."""
    out, plan = place.out / f"{name}.json", place.out / f"{name}.plan.json"
    out.unlink(missing_ok=True)
    words = {"model": str(place.scratch / "models" / MODEL), "mode": modes.BREAKABLE}
    words |= {"port": port, "out": str(out), "engine": ENGINE}
    plan.write_text(json.dumps(words))
    with (place.out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [place.python, str(HERE / "ready_engine.py"), str(plan)],
            env=place.environment(),
            cwd=place.out,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        launch.kill(process)


def _until_answered(
    process: subprocess.Popen, out: Path, limit_s: float, ask: Callable[[], dict]
) -> list[dict]:
    """Every answer of --require until the engine has answered its prompts; SystemExit where it ends
    or is late."""
    asked, end = [], time.time() + limit_s
    while not out.exists():
        asked.append(ask())
        if process.poll() is not None or time.time() > end:
            sys.exit(f"{out.stem}: the engine did not answer; see {out.with_suffix('.log')}")
        time.sleep(POLL_S)
    return asked


def _module(place: launch.Place, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [place.python, str(_folder(place)), *words],
        env=place.environment(),
        cwd=place.out,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _listing(place: launch.Place) -> str:
    """The tree's hash as servers log it: of tree.sha256, not of the files."""
    file = _folder(place) / "tree.sha256"
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def _folder(place: launch.Place) -> Path:
    folders = (folder / "sglang/srt/prefill_graph" for folder in place.path)
    return next(folder for folder in folders if folder.is_dir())


def _require(place: launch.Place, tree: str, more: Sequence[str], began: float) -> Asked:
    done = _module(place, "--require", tree, *more)
    return Asked(round(time.time() - began, 1), done.returncode, (done.stdout + done.stderr)[-400:])


def judged(seen: dict) -> list[compare.Verdict]:
    """Each stage's exit code is the one that is promised, and the counts name every prompt."""
    wanted = {
        "before": NONE,
        "ready": RUNS,
        "another tree": OTHER,
        "beside an unpatched one": UNREADY,
        "of one server": RUNS,
        "of the other": UNREADY,
        "after": NONE,
    }
    checks = [
        compare.Verdict(stage, seen[stage]["code"] == code, f"exit code {seen[stage]['code']}")
        for stage, code in wanted.items()
    ]
    codes = [asked["code"] for asked in seen["starting"]]
    early = set(codes) <= {NONE, UNREADY, RUNS} and UNREADY in codes
    checks.append(compare.Verdict("while it started", early, f"exit codes {codes}"))
    return [*checks, _counted(seen["counts"])]


def _counted(servers: list[dict]) -> compare.Verdict:
    """The server's own warm-up is counted too."""
    on_graph = sum(server["on_graph"] for server in servers)
    eager = {why: count for server in servers for why, count in server["eager"].items()}
    return compare.Verdict(
        "every prompt ran on the graph", on_graph >= PROMPTS, f"{on_graph}, and eagerly {eager}"
    )
