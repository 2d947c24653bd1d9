"""The bench, on engines that need no GPU: who is asked when, what becomes of a mode that dies, and
what the page says."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest

from evidence import benches
from evidence.pages import bench as benchpage
from evidence.plots import bench as plot
from evidence.records import Bench

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).parent / "fake_gpu"
GPU = ROOT / "tests/gpu"
PLACE = ["--tree", str(FAKE / "tree"), "--site", str(FAKE / "site")]
THREE = ["--mode", "eager", "piecewise", "piecewise-inductor"]
SHORT = ["--shapes", "1x64", "--times", "2", "--loads", "3"]


@pytest.fixture(autouse=True)
def kept_bytecode(tmp_path: Path, engine_bytecode: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/bytecode").symlink_to(engine_bytecode)


@pytest.fixture
def gpu(monkeypatch) -> None:
    """tests/gpu's modules can be imported, and its GPU is the fake one."""
    monkeypatch.syspath_prepend(str(GPU))
    monkeypatch.setenv("PATH", f"{FAKE / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in ("bench", "turns", "launch", "commandline", "machine", "judging"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def bench(gpu, monkeypatch, tmp_path):
    """Run the bench here: exit code, what it wrote. Keywords are its settings, or FAKE_…
    variables."""
    module = importlib.import_module("bench")
    monkeypatch.setattr(module.steady, "SLOWER", 1e6)  # this machine's threads are what they are

    def run(*words: str, **settings) -> tuple[int, dict]:
        for name, value in settings.items():
            if name.startswith("FAKE_"):
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.setattr(module, name, value)
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = module.main(["--out", str(tmp_path), *PLACE, *words])
        finally:
            signal.signal(signal.SIGTERM, before)
        return code, json.loads((tmp_path / "bench.json").read_text())

    return run


def test_modes_take_turns(bench, tmp_path, capsys):
    """One engine at a time; every second round in the other direction; nothing is asked that does
    not count, but for warm-ups."""
    code, found = bench(*THREE, *SHORT, FAKE_JOURNAL=str(tmp_path / "journal"))
    assert code == 0
    there = ["eager", "piecewise-eager", "piecewise-inductor"]
    back = there[::-1]
    wanted = [f"{mode} start" for mode in there] + [
        line for mode in there for line in [f"{mode} first-token 1x64", *200 * [f"{mode} load"]]
    ]
    wanted += [
        line for turn in (there, back, there) for mode in turn for line in 200 * [f"{mode} load"]
    ]
    wanted += [
        line
        for calls, turn in ((3, there), (2, back), (2, there))
        for mode in turn
        for line in calls * [f"{mode} first-token 1x64"]
    ]
    assert (tmp_path / "journal").read_text().splitlines() == wanted
    assert [[one["round"] for one in entry["loads"]] for entry in found["runs"]] == 3 * [[0, 1, 2]]
    assert all(len(entry["first_token_ms"]["1x64"]["all"]) == 2 for entry in found["runs"])
    said = capsys.readouterr().out
    assert "first token of 1x64, ms: eager" in said and "piecewise: round 3 of 3:" in said


def test_every_run_says_what_it_measured_and_how(bench):
    code, found = bench(
        "--mode", "eager", "piecewise", "breakable", *SHORT, FAKE_FAULT="no-breakable"
    )
    eager, graph, breakable = found["runs"]
    assert code == 0 and (breakable["verdict"], breakable["why"]) == (
        "not applicable",
        "the release has no breakable graph",
    )
    assert eager["loads"][0]["output_tokens"] == graph["loads"][0]["output_tokens"] > 20_000
    assert (
        eager["prefills"]["on_graph"] == 0
        and graph["prefills"]["on_graph"] == graph["prefills"]["prefills"] > 800
    )
    assert graph["loads"][0]["prefills"] == 200 and graph["loads"][0]["prefill_tokens"] > 800
    assert (
        graph["captured"] == [{"what": "piecewise CUDA graph", "seconds": 5.36, "gb": 0.12}]
        and graph["running"] == found["load"]["running"]
    )
    assert (
        eager["session"] == graph["session"] == found["session"]
        and eager["measure"] == "load first-token"
    )


def test_a_graph_that_is_not_used_fails(bench):
    code, found = bench("--mode", "piecewise", *SHORT, FAKE_FAULT="graph-unused")
    assert (
        code == 1 and found["runs"][0]["verdict"] == "failed" and "0 of" in found["runs"][0]["why"]
    )


def test_one_gpu_of_several_and_what_runs_beside_it(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "4")
    # the fake nvidia-smi answers for this GPU alone
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    code, found = bench(
        "--mode",
        "eager",
        "--only",
        "first-token",
        "--shapes",
        "1x64",
        "--times",
        "1",
        "--port",
        "41000",
        "--beside",
        "three more benches",
    )
    assert code == 0 and found["beside"] == "three more benches"
    assert "loads" not in found["runs"][0] and found["runs"][0]["measure"] == "first-token"
    assert json.loads((tmp_path / "bench.eager.plan.json").read_text())["port"] == 41000


def test_the_hardware_threads_it_had_are_said(bench):
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})  # as taskset does
    try:
        _, found = bench(
            "--mode", "eager", "--only", "first-token", "--shapes", "1x64", "--times", "1"
        )
    finally:
        os.sched_setaffinity(0, mine)
    assert found["cpus"] == 1 and "had 1 hardware thread." in page([found], with_plot=False)


def test_fast_threads_are_found_and_watched(gpu):
    steady = importlib.import_module("steady")
    spans = {0: 4.0, 1: 2.0, 2: 2.1, 3: 4.1, 4: 2.0, 5: 2.2}
    asked = []

    def timed(cpu):
        asked.append(cpu)
        return spans[cpu]

    threads = steady.Threads([*spans], timed)
    assert threads.fastest == 2.0 and sorted(threads.fast(3)) == [1, 2, 4]
    asked.clear()
    assert sorted(threads.fast(3)) == [1, 2, 4] and sorted(asked) == [
        1,
        2,
        4,
    ], "what was fast before is tried first"
    assert threads.still_fast([1, 2, 4])
    spans[2] = 3.9  # a neighbour came
    assert not threads.still_fast([1, 2, 4]) and sorted(threads.fast(3)) == [1, 4, 5]
    spans |= {1: 4.0, 4: 4.2, 5: 4.4}
    assert len(threads.fast(3)) == 3, "where too few are fast, the fastest"


def test_an_engines_processes_stay_on_their_threads(gpu):
    """Those that it has started, and their threads."""
    steady = importlib.import_module("steady")
    one = min(os.sched_getaffinity(0))
    code = (
        "import subprocess, sys, threading; threading.Thread(target=sys.stdin.read).start();"
        " sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
            time.sleep(0.01)
        steady.pin([process.pid, 4_000_000], [one])
        assert {
            frozenset(os.sched_getaffinity(int(task.name)))
            for task in Path(f"/proc/{process.pid}/task").iterdir()
        } == {frozenset([one])}
        process.stdin.close()


def test_a_turn_counts_where_every_mode_had_fast_threads(bench, monkeypatch):
    """The second mode never has them in its second turn: the other's call of that turn has no
    partner."""
    module = importlib.import_module("bench")
    # warm-ups, first turn, then second turn backwards
    calls = iter([True, True, True, True, True, *[False] * module.TRIES, True])
    monkeypatch.setattr(module.steady.Threads, "still_fast", lambda self, cpus: next(calls, True))
    code, found = bench(
        "--mode", "eager", "piecewise", "--only", "first-token", "--shapes", "1x64", "--times", "3"
    )
    kept = [run["first_token_ms"]["1x64"] for run in found["runs"]]
    assert code == 0 and [(len(one["all"]), one["lost"]) for one in kept] == [(2, 1), (2, 1)]


POLLS = """
import json, os, socket, subprocess, sys
plan = json.load(open(sys.argv[1]))
poll = "import sys, time\\nwhile True: open(sys.argv[1], 'a').write('.'); time.sleep(0.002)"
child = subprocess.Popen([sys.executable, "-c", poll, plan["ticks"]], preexec_fn=os.setpgrp)  # as schedulers may: a group of its own
with socket.socket(fileno=plan["fd"]).makefile("rw") as talk:
    for request in talk:
        before = os.path.exists(plan["ticks"]) and os.path.getsize(plan["ticks"])
        while not os.path.exists(plan["ticks"]) or os.path.getsize(plan["ticks"]) < before + 20:
            pass
        talk.write("{}\\n")
        talk.flush()
"""  # noqa: E501


def test_an_engine_runs_only_while_it_is_asked(gpu, tmp_path):
    """Idle engines poll: one that shared a core with the engine under measurement made its calls
    half as long again."""
    turns, launch = importlib.import_module("turns"), importlib.import_module("launch")
    (tmp_path / "polls.py").write_text(POLLS)
    ticks = {mode: tmp_path / mode for mode in ("a", "b")}
    made = [
        turns.begin(launch.Place((), tmp_path), mode, tmp_path / "polls.py", {"ticks": str(file)})
        for mode, file in ticks.items()
    ]
    try:
        for engine in made:
            engine.ask("start", time.time() + 20)
        for asked, idle in (made, made[::-1], made):
            time.sleep(0.05)
            before = {mode: file.stat().st_size for mode, file in ticks.items()}
            asked.ask("load", time.time() + 20)
            after = {mode: file.stat().st_size for mode, file in ticks.items()}
            assert (
                after[asked.mode] >= before[asked.mode] + 20
                and after[idle.mode] == before[idle.mode]
            )
    finally:
        began = time.time()
        turns.end(made)
    assert time.time() - began < launch.GRACE_S  # stopped processes hear that they should end
    assert not [
        file
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if str(tmp_path).encode() in _bytes(file)
    ]


def test_memory_is_told_by_process_where_that_can_be(gpu, monkeypatch, tmp_path):
    turns = importlib.import_module("turns")
    (tmp_path / "apps").write_text(f"{os.getpid()}, 500\n{os.getppid()}, 70\n4000000, 9\n")
    monkeypatch.setenv("FAKE_APPS", str(tmp_path / "apps"))
    mine = 500 + (70 if os.getsid(os.getppid()) == os.getsid(0) else 0)
    assert turns.Gpu.here().session_mib(os.getsid(0)) == mine
    assert turns.Gpu.here().session_mib(4000000) == 0


def test_engines_share_the_gpu(gpu):
    module = importlib.import_module("bench")
    nemotron, sparse = (module.subjects.SUBJECTS[name] for name in ("nemotron", "deepseek-v32"))
    assert [module.fitting(nemotron, 143771, count) for count in (1, 2, 3, 4)] == [128, 108, 56, 28]
    assert module.fitting(sparse, 143771, 2) == 128
    with pytest.raises(SystemExit, match="7 engines of .* do not fit"):
        module.fitting(nemotron, 143771, 7)


def test_llama_has_the_published_number_of_weights(gpu):
    module = importlib.import_module("bench")
    llama = module.subjects.SUBJECTS["llama"]
    weights = sum(math.prod(shape) for _, shape, _ in module.subjects.models.shapes(llama.config))
    assert (
        weights == 8_030_261_248
        and weights * 2 / 2**30 <= llama.weights < weights * 2 / 2**30 + 0.1
    )
    assert module.fitting(llama, 143771, 2) == 128


def test_qwen3_has_the_published_number_of_weights(gpu):
    """Llama's matrices and norms, and two norms of a head in each layer."""
    module = importlib.import_module("bench")
    qwen3 = module.subjects.SUBJECTS["qwen3"]
    alike = module.subjects.models.shapes(qwen3.config | {"model_type": "llama"})
    weights = sum(math.prod(shape) for _, shape, _ in alike) + 36 * 2 * 128
    assert weights == 8_190_735_360
    assert weights * 2 / 2**30 <= qwen3.weights < weights * 2 / 2**30 + 0.1
    assert module.fitting(qwen3, 143771, 2) == 128


def test_another_model_has_its_own_modes_and_shapes(bench, tmp_path):
    """Sparse attention: first tokens alone, from 256 tokens on, eager prefill against the one graph
    it is let into."""
    code, found = bench("--subject", "deepseek-v32", "--times", "1")
    assert (
        code == 0
        and found["subject"] == "deepseek-v32"
        and found["model"].startswith("DeepSeek-V3.2")
    )
    assert [run["mode"] for run in found["runs"]] == ["eager", "piecewise"] and all(
        "loads" not in run for run in found["runs"]
    )
    assert list(found["runs"][0]["first_token_ms"]) == [
        "1x256",
        "1x512",
        "1x1024",
        "1x2048",
        "1x4096",
        "8x256",
        "8x512",
    ]
    plan = json.loads((tmp_path / "bench.piecewise.plan.json").read_text())
    assert (
        plan["breakable"] is False
        and plan["engine"]["attention_backend"] == "nsa"
        and "max_mamba_cache_size" not in plan["engine"]
    )


def test_an_engine_that_dies_leaves_the_others_their_rounds(bench):
    code, found = bench(
        "--mode", "eager", "piecewise", "--only", "load", "--loads", "3", FAKE_FAULT="dies-in-load"
    )
    eager, graph = found["runs"]
    assert (
        code == 1
        and eager["verdict"] == "passed"
        and [one["round"] for one in eager["loads"]] == [0, 1, 2]
    )
    assert (
        graph["verdict"] == "failed"
        and graph["why"].startswith("load: exit code 7")
        and [one["round"] for one in graph["loads"]] == [0]
    )


def test_an_engine_that_falls_silent_is_ended(bench):
    code, found = bench(
        "--mode",
        "eager",
        "piecewise",
        "--only",
        "load",
        "--loads",
        "2",
        LOAD_S=3,
        FAKE_FAULT="stalls",
    )
    eager, graph = found["runs"]
    assert (
        code == 1 and len(eager["loads"]) == 2 and graph["why"].startswith("load: no answer in 3 s")
    )


def test_an_engine_that_does_not_start_is_said(bench):
    code, found = bench("--mode", "eager", "piecewise", *SHORT, FAKE_FAULT="dies")
    assert (
        code == 1
        and found["runs"][0]["verdict"] == "passed"
        and "planted: the engine does not start" in found["runs"][1]["why"]
    )


def test_the_limit_ends_it_with_whole_rounds(bench):
    seconds = {"eager": 0.4, "piecewise-eager": 0.4}
    code, found = bench(
        "--mode",
        "eager",
        "piecewise",
        "--only",
        "load",
        "--loads",
        "99",
        "--limit",
        "20",
        END_S=8,
        FAKE_SECONDS=json.dumps(seconds),
    )
    eager, graph = found["runs"]
    assert (
        code == 0 and found["seconds"] <= 20 and 0 < len(eager["loads"]) == len(graph["loads"]) < 99
    )


def test_a_limit_too_short_for_anything_is_said(bench):
    code, found = bench("--mode", "eager", "--only", "load", "--limit", "10", END_S=9.9)
    assert (
        code == 1
        and found["runs"][0]["verdict"] == "failed"
        and "no answer in" in found["runs"][0]["why"]
    )


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name
)
def test_ended_from_outside_it_leaves_what_it_has_and_no_process(gpu, tmp_path, number):
    """By SIGKILL too: an engine that is stopped does not see that nobody will ask it any more."""
    command = [
        sys.executable,
        str(GPU / "bench.py"),
        "--out",
        str(tmp_path),
        *PLACE,
        "--mode",
        "eager",
        "piecewise",
        "--only",
        "load",
        "--loads",
        "999",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert any("round 3 of" in line for line in running.stdout)
        running.send_signal(number)
        running.communicate()
    assert len(json.loads((tmp_path / "bench.json").read_text())["runs"][0]["loads"]) >= 2
    until = time.time() + 5
    while (
        left := [
            file
            for file in Path("/proc").glob("[0-9]*/cmdline")
            if str(tmp_path).encode() in _bytes(file)
        ]
    ) and time.time() < until:
        time.sleep(0.05)
    assert running.returncode and not left


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def test_a_gain_is_found_end_to_end(bench):
    seconds = {"eager": 0.6, "piecewise-eager": 0.1}
    _, found = bench(
        "--mode",
        "eager",
        "piecewise",
        "--only",
        "load",
        "--loads",
        "6",
        FAKE_SECONDS=json.dumps(seconds),
    )
    assert (
        benches.gain(of(found), "piecewise").shown
        and benches.gain(of(found), "piecewise").median > 10
    )
    assert "no gain shown" not in page([found], with_plot=False)


def page(benches: list[dict], with_plot: bool = False) -> str:
    return benchpage.page([of(one) for one in benches], with_plot)


def of(found: dict) -> Bench:
    return fakes.recorded(found, Bench)


def measurement(
    rates: dict[str, list[float]], first: dict[str, list[float]] | None = None, **more
) -> dict:
    """A bench as tests/gpu writes it: throughputs by round, and milliseconds to the first token of
    1 x 64 by turn."""
    runs = [
        {
            "mode": mode,
            "measure": "load",
            "session": "s",
            "verdict": "passed",
            "why": "",
            "captured": [{"what": "piecewise CUDA graph", "seconds": 5.0, "gb": 1.0}],
            "memory_mib": {"after_load": 1024},
            "running": 56,
            "prefills": {"on_graph": 3, "prefills": 3},
            "loads": [
                {
                    "round": number,
                    "tokens_per_s": rate,
                    "mean_latency_s": 1.0,
                    "prefill_tokens": 300,
                }
                for number, rate in enumerate(rated)
            ],
            "first_token_ms": (
                {"1x64": {"median": sorted(first[mode])[len(first[mode]) // 2], "all": first[mode]}}
                if first
                else {}
            ),
        }
        for mode, rated in rates.items()
    ]
    load = {
        "requests": 1,
        "in_flight": 1,
        "mean_prompt": 1,
        "shared_prefix": 1,
        "mean_answer": 1,
        "prefix_cache": True,
        "chunk": 1,
        "capture": [1, 2],
        "loads": 6,
        "times": 6,
    }
    return {
        "version": "0.5.9",
        "model": "m",
        "gpu": {"name": "G", "driver": "1"},
        "torch": {"version": "2", "pinned": "1", "off_pin": True},
        "python": "3",
        "date": "d",
        "queue_release": 1,
        "load": load,
        "runs": runs,
    } | more


NOISE = [0.99, 1.02, 1.0, 0.97, 1.01, 1.0]
FLAT = [100 * noise for noise in NOISE]


def test_a_gain_is_told_with_its_interval_beside_what_was_reported():
    text = page(
        [
            measurement(
                {
                    "eager": FLAT,
                    "piecewise": FLAT[::-1],
                    "piecewise-inductor": [one * 1.1 for one in FLAT],
                }
            )
        ],
        with_plot=False,
    )
    assert (
        "the piecewise graph (eager compiler), +0.0 % (-3.0 to +3.1, 6 rounds): no gain shown. The"
        " pull request reports +1.4 %" in text
    )
    assert (
        "the piecewise graph (inductor), +10.0 % (+10.0 to +10.0, 6 rounds). The pull request"
        " reports +10.5 %" in text
    )
    assert (
        "Eager prefill against itself, odd rounds against even ones: -1.0 % (-3.0 to +3.0, 3"
        " pairs)."
        in text
        and "off its pin" in text
    )


def test_too_few_rounds_are_said_to_be_too_few():
    text = page(
        [measurement({"eager": FLAT[:5], "piecewise": [one * 1.1 for one in FLAT[:5]]})],
        with_plot=False,
    )
    assert (
        "+10.0 % (+10.0 to +10.0, 5 rounds): too few rounds to show a gain" in text
        and "no gain shown" not in text
    )


def test_five_rounds_show_nothing():
    assert not benches.change([(100, 110)] * 5).shown and benches.change([(100, 110)] * 6).shown
    # the third of twelve
    assert benches.change([(100, 100 + one) for one in range(12)]).low == pytest.approx(2)


def test_drift_is_no_gain(gpu):
    """A host that slows down steadily: in turn and back again, equal modes come out equal."""
    turns = importlib.import_module("turns")
    engines = [
        turns.Engine(mode, None, None, None)
        for mode in ("eager", "piecewise", "piecewise-inductor")
    ]
    rates, now = {engine.mode: [] for engine in engines}, 0
    for number in range(6):
        for engine in turns.order(engines, number):
            rates[engine.mode].append(100 - now)
            now += 1
    bench = measurement(rates)
    for mode in ("piecewise", "piecewise-inductor"):
        assert (
            not benches.gain(of(bench), mode).shown
            and abs(benches.gain(of(bench), mode).median) < 0.1
        )


def test_first_tokens_are_compared_turn_by_turn():
    drift = [30, 32, 34, 36, 38, 40]
    text = page(
        [
            measurement(
                {"eager": FLAT, "piecewise": FLAT, "breakable": FLAT},
                {"eager": drift, "piecewise": [one * 0.9 for one in drift], "breakable": drift},
            )
        ],
        False,
    )
    assert "| 1 × 64 | 36.0 | 32.4 (-10.0 %) | 36.0 |" in text
    assert (
        "Time to first token against eager prefill, 1 shape. With the piecewise graph (eager"
        " compiler) it is faster at 1, by up to 10.0 % (1 × 64)." in text
    )
    assert "With the breakable graph it is neither faster nor slower." in text


@pytest.mark.parametrize("decode", ["cuda graph", "target decode CUDA graph"])
def test_the_decode_graph_is_not_counted(decode):
    bench = measurement({"eager": FLAT})
    bench["runs"][0]["captured"] = [{"what": decode, "seconds": 4.5, "gb": 0.2}]
    assert "| - | - | 1.0 | 3 of 3 |" in page([bench], False)
    bench["runs"][0]["captured"] += [
        {"what": "target prefill CUDA graph", "seconds": 9.7, "gb": 0.8}
    ]
    assert "| 9.7 | 0.80 | 1.0 | 3 of 3 |" in page([bench], False)


def test_turns_that_do_not_count_are_told():
    first = {"eager": FLAT, "piecewise": FLAT}
    bench = measurement(first, first, idle="stopped; first tokens on steady threads")
    for run in bench["runs"]:
        run["first_token_ms"]["1x64"]["lost"] = 2
    text = page([bench], False)
    assert "fast before and after each call: 2 of 8 do not" in text and "polled" not in text


def test_a_mode_is_shown_release_beside_release():
    first = {"eager": FLAT, "breakable": [one / 2 for one in FLAT]}
    text = page(
        [
            measurement(first, first),
            measurement(first, first, version="0.5.16"),
            measurement({"eager": FLAT}),
        ],
        False,
    )
    assert (
        "| requests × tokens | 0.5.9 on G | 0.5.16 on G |" in text
        and "| 1 × 64 | 100.0 → 50.0 | 100.0 → 50.0 |" in text
    )
    assert "release beside release" not in page([measurement(first, first)], False)


def test_each_model_has_its_own_setting_and_releases():
    first = {"eager": FLAT, "piecewise": FLAT}
    sparse = measurement(first, first, model="n", subject="deepseek-v32")
    for run in sparse["runs"]:
        del run["loads"]
    text = page([measurement(first), sparse], False)
    assert text.count("has the published shape of") == 2 and text.count("GSM8K") == 1
    assert text.index("shape of m ") < text.index("## 0.5.9 on G") < text.index("shape of n ")


def test_a_mode_that_failed_has_its_row_and_its_rounds_are_kept():
    bench = measurement({"eager": FLAT, "piecewise-inductor": FLAT[:2]})
    bench["runs"].append(
        {"mode": "piecewise", "verdict": "failed", "why": "it died", "captured": []}
    )
    text = page([bench], with_plot=False)
    assert (
        "| piecewise, eager compiler | failed: it died |" in text
        and "+0.0 % (+0.0 to +0.0, 2 rounds)" in text
    )


def test_modes_of_another_session_are_not_compared():
    bench = measurement({"eager": FLAT, "piecewise": [one * 2 for one in FLAT]})
    bench["runs"][1]["session"] = "another"
    text = page([bench])
    assert "nothing can be compared" in text and "| piecewise, eager compiler | 200" in text


def test_modes_that_ran_one_after_the_other_show_no_gain():
    bench = measurement({"eager": FLAT, "piecewise": [one * 2 for one in FLAT]})
    for run in bench["runs"]:
        del run["session"]
    assert "no gain can be told" in page([bench], with_plot=True) and "![" not in page(
        [bench], with_plot=True
    )


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rates = {"eager": FLAT, "piecewise": FLAT[::-1], "breakable": FLAT}
    assert (
        plot.draw([of(measurement(rates, rates)), of(measurement(rates))], tmp_path / "plot.png")
        and (tmp_path / "plot.png").stat().st_size > 10_000
    )
    assert not plot.draw([], tmp_path / "none.png")


def test_the_bench_page_is_made_from_what_was_measured():
    page = ROOT / benchpage.PAGE
    assert not page.is_file() or page.read_text(encoding="utf-8") == benchpage.of(ROOT)


def test_a_tree_that_an_earlier_tool_built_is_refused_with_a_sentence(bench, tmp_path):
    shutil.copytree(FAKE / "tree", tmp_path / "tree")
    record = next((tmp_path / "tree").glob("*.dist-info")) / "patch_queue.json"
    record.write_text(
        json.dumps(
            {
                name: value
                for name, value in json.loads(record.read_text()).items()
                if name != "changes"
            }
        )
    )
    with pytest.raises(SystemExit, match="built by an earlier tool, build it again"):
        bench("--tree", str(tmp_path / "tree"), "--mode", "eager", *SHORT)
