#!/usr/bin/env python3
"""What it costs to keep what breaks of a breakable graph read, and what goes wrong without:
`python break_memory.py --out RESULTS` in an unpacked bundle, or with --tree and --site.

Three ways, one after the other on the first GPU, of one tree (holding/sitecustomize.py switches):
main makes weak views of every input of a break, strong holds every one (sglang#37448), ours holds
those that the graph's own segments do not write in every replay. Each starts an engine of
Qwen3-8B's shape with dummy weights at the default capture sizes, and runs lifetimes.py: two sizes
in one pool, memory handed out again, both replayed in every order. reuse.py takes the steps that
sglang#37606 tells.
Then run.py asks a small Llama with random weights in that graph, and eagerly.
Prints a table, and writes RESULTS/break_memory.json. Exit code 0: every engine started.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases
import commandline
import compare
import engine as engines
import launch
import machine
import modes
import subjects

HERE = Path(__file__).resolve().parent
KERNELS = ("sampling_backend", "grammar_backend")  # that a bundle has
WAYS = ("main", "strong", "ours")
CAPTURED = re.compile(
    r"Capture (?:target )?prefill CUDA graph end\. elapsed=([\d.]+) s,\s+mem usage=([\d.]+) GB"
)
SIZES = re.compile(r"prefill CUDA graph begin\..*num_tokens=\[([\d, ]+)\]")


@dataclass(frozen=True)
class Captured:
    """What an engine's log says of its prefill graph. sizes: tokens of each captured size."""

    seconds: float
    gigabytes: float
    sizes: tuple[int, ...]


def captured(log: str) -> Captured | None:
    """From an engine's log; None where no prefill graph was captured."""
    found, sizes = CAPTURED.search(log), SIZES.search(log)
    if not found or not sizes:
        return None
    numbers = tuple(int(number) for number in sizes[1].split(","))
    return Captured(float(found[1]), float(found[2]), numbers)


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    if options.engine:
        return _engine(json.loads(options.engine))
    place, rows = commandline.place_of(options), []
    folder = place.scratch / "qwen3-8b"
    folder.mkdir(exist_ok=True)
    config = subjects.QWEN3_8B | ({"num_hidden_layers": options.layers} if options.layers else {})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for way in options.ways:
        rows.append(_way(place, folder, way, options))
        print(told(rows[-1]), flush=True)
        # whatever ends the next way leaves this one's figures
        (place.out / "break_memory.json").write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    return 0 if all(row["captured"] for row in rows) else 1


def told(row: dict) -> str:
    """A row of the table, as Markdown."""
    size, checks = row["captured"], row["lifetimes"]
    cost = f"{size['gigabytes']:.2f} GB | {size['seconds']:.1f} s" if size else "none | none"
    wrong = [check["what"] for check in checks if not check["good"]]
    wrong += [
        f"inputs of {one['origin']}" for one in row["reuse"] if not all(one["replays"].values())
    ]
    count = len(size["sizes"]) if size else 0
    found = "; ".join(wrong) or ("all held" if checks else "not checked")
    return f"| {row['way']} | {count} sizes | {cost} | {found} | {row['llama']} |"


def _way(place: launch.Place, folder: Path, way: str, options: argparse.Namespace) -> dict:
    switched = launch.Place((HERE / "holding", *place.path), place.out, place.python)
    plan = {"folder": str(folder), "max_bs": options.max_bs, "fraction": options.fraction}
    plan["attention"] = options.attention
    log = _run(switched, way, "engine", [__file__, "--engine", json.dumps(plan)], options.limit)
    file = place.out / f"lifetimes.{way}.json"
    file.unlink(missing_ok=True)
    _run(switched, way, "lifetimes", [str(HERE / "lifetimes.py"), "--out", str(file)], 300)
    checks = json.loads(file.read_text("utf-8"))["checks"] if file.is_file() else []
    steps = place.out / f"reuse.{way}.json"
    steps.unlink(missing_ok=True)
    _run(switched, way, "reuse", [str(HERE / "reuse.py"), "--out", str(steps)], 120)
    reuse = json.loads(steps.read_text("utf-8"))["found"] if steps.is_file() else []
    found, llama = captured(log), place.out / f"llama.{way}"
    for answers in llama.glob("llama.*.json"):  # of an earlier run
        answers.unlink()
    _run(switched, way, "llama", asking(llama, options), 3 * options.limit)
    row = {"way": way, "captured": asdict(found) if found else None, "lifetimes": checks}
    return row | {"reuse": reuse, "llama": alike(llama)}


def asking(out: Path, options: argparse.Namespace) -> list[str]:
    """run.py's command line. Its engines get a path of their own, which holding/ is in as a folder
    of packages: those with a sitecustomize.py come first."""
    sites = [HERE / "holding", *(options.site or [HERE.parents[1]])]
    where = [word for site in sites for word in ("--site", str(site.absolute()))]
    where += ["--tree", str(options.tree.absolute())] if options.tree else []
    asked = ["--model", "llama", "--mode", modes.BREAKABLE, "--gpus", "1"]
    asked += ["--attention", options.attention]
    return [str(HERE / "run.py"), "--out", str(out), *where, *asked]


def alike(out: Path) -> str:
    """How many of eager prefill's tokens the Llama gives in the graph."""
    files = [out / f"llama.{mode}.json" for mode in (modes.BREAKABLE, *modes.REFERENCES)]
    read = [json.loads(file.read_text("utf-8"))["passes"] for file in files if file.is_file()]
    if len(read) != 2:
        return "no answers"
    graph, eager = read
    found = compare.tally(*((graph[name], eager[name]) for name in (cases.COLD, cases.SIZES)))
    return f"{found.tokens} of {found.offered} tokens alike"


def _run(place: launch.Place, way: str, what: str, words: Sequence[str], limit_s: float) -> str:
    """Its log, which is kept in the results. A process that hangs is ended after limit_s."""
    log = place.out / f"{what}.{way}.log"
    environment = place.environment(BREAK_HOLDS=way, CUDA_VISIBLE_DEVICES=machine.visible()[0].use)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [place.python, *words],
            env=environment,
            cwd=place.out,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"{what} of {way} was ended after {limit_s:.0f} s", file=sys.stderr)
        finally:
            launch.kill(process)
    return log.read_text("utf-8", "replace")


def _engine(plan: dict) -> int:
    """Start an engine at the release's default capture sizes, prefill once, and end."""
    from sglang import Engine

    words = dict(
        model_path=plan["folder"],
        load_format="dummy",
        skip_tokenizer_init=True,
        log_level="info",
        mem_fraction_static=plan["fraction"],
        attention_backend=plan["attention"],
        cuda_graph_backend_prefill="breakable",
        disable_decode_cuda_graph=True,
        **{name: engines.ENGINE[name] for name in KERNELS},
    )
    if plan["max_bs"]:
        words["cuda_graph_max_bs_prefill"] = plan["max_bs"]
    engine = Engine(**words)
    began = time.time()
    engine.generate(input_ids=[list(range(100, 612))], sampling_params={"max_new_tokens": 8})
    print(f"512 tokens answered in {time.time() - began:.2f} s", flush=True)
    engine.shutdown()
    return 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    parser.add_argument("--tree", type=Path, help="a tree's python/ (default: the bundle's)")
    parser.add_argument("--site", type=Path, action="append", help="folder of packages")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default all")
    parser.add_argument("--max-bs", type=int, help="largest captured size (default: the release's)")
    parser.add_argument("--layers", type=int, help="layers of the model (default 36)")
    parser.add_argument("--fraction", type=float, default=0.4, help="--mem-fraction-static")
    parser.add_argument("--limit", type=float, default=420, help="seconds for each engine")
    commandline.add_attention(parser, "as in run.py")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
