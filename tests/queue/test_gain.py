"""The untouched release and the patched one in one run, on engines that need no GPU; and traces."""

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import gpumodules
import pytest

FAKE = Path(__file__).parent / "fake_gpu"
SHORT = ["--shapes", "1x512", "8x64", "--rounds", "4"]
ARGS = "sglang/srt/server_args.py"


@pytest.fixture
def gpu(monkeypatch) -> None:
    """tests/gpu's modules can be imported, and its GPU is the fake one."""
    gpumodules.load(monkeypatch, "gain")
    monkeypatch.setenv("PATH", f"{FAKE / 'bin'}{os.pathsep}{os.environ['PATH']}")


load = importlib.import_module


@pytest.fixture
def laid(gpu, tmp_path) -> Path:
    """What makes a slower tree without a breakable graph out of the fake one."""
    lines = (FAKE / "tree" / ARGS).read_text().splitlines(True)
    arguments = "".join(line for line in lines if "breakable" not in line)
    own = {"sglang/srt/slow.py": "SLOW = 1.5\n", ARGS: arguments}
    made, maker = tmp_path / "laid", load("untouched")
    fakes.write_all(made / "files", own)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in own.items()}
    plan = {"schema": 1, "remove": ["sglang/srt/model_executor/__init__.py"], "replace": digests}

    def write(tree: str) -> None:
        (made / "plan.json").write_text(json.dumps(plan | {"tree": tree}))

    write("none")
    with pytest.raises(maker.Unmade):
        maker.make(FAKE / "tree", made, tmp_path / "tried")
    write(maker.tree_hash(tmp_path / "tried"))
    return made


@pytest.fixture
def gain(laid, monkeypatch, tmp_path, engine_bytecode):
    """Run it here: exit code, what it wrote. Keywords are its settings, or FAKE_… variables."""
    out = tmp_path / "out"
    (out / "scratch").mkdir(parents=True)
    (out / "scratch/bytecode").symlink_to(engine_bytecode)
    module = load("gain")
    monkeypatch.setattr(module.traffic, "PREFILL_REQUESTS", 4)
    place = ["--tree", FAKE / "tree", "--site", FAKE / "site", "--untouched", laid, "--out", out]

    def run(*words: str, **settings) -> tuple[int, dict]:
        for name, value in settings.items():
            if name.startswith("FAKE_"):
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.setattr(module if hasattr(module, name) else module.timing, name, value)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            code = module.main([*map(str, place), *words])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return code, json.loads((out / "gain.json").read_text())

    return run


def test_both_trees_are_timed_in_one_run(gain, laid, tmp_path):
    """One engine at a time; shapes in turn, round after round; then loads, then profiles."""
    code, found = gain(*SHORT, FAKE_JOURNAL=str(tmp_path / "journal"), FAKE_STEP="0.04")
    assert code == 0 and found["passed"]
    assert [run["tree"] for run in found["runs"]] == ["untouched", "patched"]
    slow, fast = found["runs"]
    for run in (slow, fast):
        assert list(run["first_token_ms"]) == ["1x512", "8x64"]
        assert len(run["first_token_ms"]["8x64"]["all"]) == 4
        assert [one["round"] for one in run["loads"]] == [0, 1, 2]
        assert run["loads"][0]["prefills"] == 4
        assert run["profile"]["8x64"]["forwards"] == 1 and run["profile"]["8x64"]["launches"] == 2
    assert (slow["mode"], slow["instead_of"], fast["mode"]) == ("eager", "breakable", "breakable")
    assert slow["mode_why"] == "the release has no breakable graph"
    assert fast["prefills"]["on_graph"] == fast["prefills"]["prefills"] > 20
    assert found["gain"]["untouched"] == json.loads((laid / "plan.json").read_text())["tree"]
    for number, tree in enumerate(("untouched", "patched"), 1):
        plan = json.loads((tmp_path / f"out/bench.{number}.{tree}.plan.json").read_text())
        assert plan["engine"] == found["gain"]["engine"] and plan["engine"]["disable_radix_cache"]
    first = [run["first_token_ms"]["1x512"]["fastest"] for run in (slow, fast)]
    assert first[0] > 1.2 * first[1] > 1.2 * 40
    assert (slow["profile"]["8x64"]["busy_ms"], fast["profile"]["8x64"]["busy_ms"]) == (1.28, 1.024)
    turn = ["first-token 1x512", "first-token 8x64"]
    one = ["start", *7 * turn, *12 * ["load", "first-token 1x4096"], *2 * ["profile"]]
    asked = [line.split(" ", 1) for line in (tmp_path / "journal").read_text().splitlines()]
    for mode in ("eager", "breakable"):
        mine = [what for name, what in asked if name == mode]
        assert mine[:15] == one[:15] and sorted(mine) == sorted(one)
    assert [name for name, what in asked if what == "start"] == ["eager", "breakable"]


def test_each_engine_is_told_whether_to_capture_states(gain, tmp_path, capsys):
    switch, words = "SGLANG_PREFILL_GRAPH_STATES", ["--shapes", "1x64", "--rounds", "1"]
    two = [*words, "--trees", "patched", "patched", "--states", "break", "capture"]
    code, found = gain(*two, LOADS=1, FAKE_TOLD=switch)
    logs = [(tmp_path / f"out/bench.{visit}.patched.log").read_text() for visit in (1, 2)]
    told = [log.count(f"{switch}={said}\n") for log, said in zip(logs, ("break", "capture"))]
    assert code == 0 and told == [1, 1]
    assert [run["states"] for run in found["runs"]] == ["break", "capture"]
    assert "patched, breakable, states: capture: passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("dies", "planted: the engine does not start"),
        ("no-kernels", "the profile of 1x512 has no kernels"),
        ("dies-later", "exit code 9: "),
    ],
)
def test_a_tree_that_fails_leaves_the_other_its_figures(gain, fault, why):
    code, found = gain(*SHORT, FAKE_FAULT=fault)
    slow, fast = found["runs"]
    assert code == 1 and slow["verdict"] == "passed" and fast["verdict"] == "failed"
    assert why in fast["why"] and ("start_s" in fast) is (fault != "dies")


def test_the_limit_ends_it_with_what_there_is(gain):
    words = ("--shapes", "1x64", "--rounds", "9999", "--limit", "14")
    code, found = gain(*words, END_S=6, FAKE_STEP="0.005")
    slow = found["runs"][0]
    assert code == 1 and found["seconds"] <= 15 and slow["verdict"] == "not run"
    assert "no time was left for 9999 rounds" in slow["why"]
    assert slow["first_token_ms"]["1x64"]["all"]


def test_no_engine_outlives_a_run_that_is_killed(gpu, tmp_path, monkeypatch):
    """It would keep its share of the GPU, and the next run would have less."""
    monkeypatch.setenv("FAKE_STEP", "0.05")
    monkeypatch.setenv("FAKE_JOURNAL", str(journal := tmp_path / "journal"))
    words = ["--tree", FAKE / "tree", "--site", FAKE / "site", "--out", tmp_path]
    words += ["--trees", "patched", "--rounds", "9999"]
    run = subprocess.Popen([sys.executable, gpumodules.GPU / "gain.py", *map(str, words)])
    until, launch = time.time() + 60, load("launch")
    while not (journal.is_file() and "first-token" in journal.read_text()) and time.time() < until:
        time.sleep(0.1)
    run.kill()
    run.wait()
    started = {int(file.stem) for file in tmp_path.glob("*.pid")}
    (engine,) = (pid for pid in started if os.getsid(pid) == pid)
    while engine in launch.members(engine) and time.time() < until:
        time.sleep(0.1)
    left = launch.members(engine)
    for pid in left:  # a fake engine's child, which does not follow it
        os.kill(pid, signal.SIGKILL)
    assert engine not in left and time.time() < until


FAILS = """
import threading, time, timing
def start(self):
    threading.Thread(target=time.sleep, args=[60]).start()
    raise ValueError("planted")
timing.run(type("Fails", (timing.Timed,), {"start": start}))
"""


def test_an_engine_that_fails_does_not_wait_for_what_it_has_left(gpu, tmp_path):
    """Its share of the time went by, and why it failed was not said."""
    (plan := tmp_path / "plan.json").write_text(json.dumps({"until": 0, "shapes": []}))
    words = [sys.executable, "-c", FAILS, str(plan)]
    done = subprocess.run(words, cwd=gpumodules.GPU, timeout=30, capture_output=True, text=True)
    assert done.returncode == 1 and "ValueError: planted" in done.stderr


def test_what_an_engine_has_kept_is_whole_when_it_ends_while_it_writes(gpu, tmp_path, monkeypatch):
    timed, file = load("timing").Timed({"until": 0, "shapes": []}), tmp_path / "kept.part"
    timed.write(file)
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.write_bytes(b"{") // 0)
    with pytest.raises(ZeroDivisionError):
        timed.write(file)
    assert json.loads(file.read_text()) == {}


def test_a_branch_is_timed_against_a_tree_that_is_given(gain, laid, tmp_path):
    """No plan leads from a branch back to the release: "no untouched tree"."""
    maker, other = load("untouched"), tmp_path / "other"
    assert maker.make(FAKE / "tree", laid, other) != maker.tree_hash(FAKE / "tree")
    (laid / "plan.json").unlink()
    with pytest.raises(SystemExit, match="no untouched tree: .*packed by an earlier tool"):
        gain(*SHORT)
    code, found = gain(*SHORT, "--against", str(other))
    assert code == 0 and found["gain"]["untouched"] == maker.tree_hash(other)
    # the given tree has no breakable graph, and its engine is slower
    assert [run["mode"] for run in found["runs"]] == ["eager", "breakable"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shapes", "512"], "512 is no shape: as 8x512"),
        (["--mode", "eager", "eager", "eager"], "one for all trees, or 2"),
        (["--states", "break", "break", "break"], "one for all trees, or 2"),
        (["--peer", "trt={}"], "trt={} is no peer: vllm=FOLDER or sglang=FOLDER"),
        (["--peer", "vllm"], "vllm is no peer"),
        (["--peer", "vllm={}/none"], "vllm: there is no folder {}/none"),
        (["--peer", "vllm={}"], "vllm: {} has no vllm, so it is not a folder of packages"),
        (["--peer", "sglang={}"], "sglang: {} has no manifest.json, so it is not an unpacked bun"),
    ],
)
def test_wrong_words_are_refused(gain, tmp_path, capsys, words, said):
    with pytest.raises(SystemExit):
        gain(*(word.format(tmp_path) for word in words))
    assert said.format(tmp_path) in capsys.readouterr().err


def test_the_same_kernels_in_both_trees_are_said(gpu, capsys):
    """A hook that another kernel kept out of the graph was once timed as if it had run."""
    table = load("gain_table")

    def run(tree: str, **launches: float) -> dict:
        groups = {name: {"ms": 1.0, "launches": count} for name, count in launches.items()}
        profile = {"busy_ms": 1.0, "launches": sum(launches.values()), "groups": groups}
        return {"tree": tree, "profile": {"1x64": profile}}

    breaks, captured = (run(tree, delta=9.0, copy=3.0) for tree in ("untouched", "patched"))
    for other, same in (
        (captured, ["1x64"]),
        (run("patched", delta=9.0, copy=2.0), []),
        (run("patched", delta=9.0), []),
        (breaks, []),
        ({"tree": "patched"}, []),
    ):
        assert table.same_kernels([breaks, other], ["1x64", "1x512"]) == same
    table.show_shapes({"gain": {"shapes": ["1x64"]}}, [breaks, captured])
    assert "the same kernels, as often, in all engines: 1x64\n" in capsys.readouterr().out


def test_the_first_quartile_lies_between_its_neighbours(gpu):
    spread = load("timing").spread
    assert spread([5.0])["first_quartile"] == 5
    assert spread([4.0, 1.0, 2.0, 3.0, 5.0])["first_quartile"] == 2
    values, ends = [1.0, 2.0, 3.0, 4.0], {"fastest": 1.0, "first_quartile": 1.75, "median": 2.5}
    assert spread(values) == ends | {"all": values}


def test_what_overlaps_is_busy_once_and_a_profile_is_of_one_call(gpu):
    module = load("gputrace")
    spans = ((0, 10), (5, 10), (6, 2), (20, 5), (25, 5))
    assert module.busy_us([module.Event("k", *each) for each in spans]) == 25
    assert module.busy_us([]) == 0
    one, other, scan = "void gemm<1>(int)", "void gemm<2>(int)", "_scan_kernel"
    began = ((0, one), (1000, other), (5000, one), (6000, scan))
    found = module.profile([module.Event(name, at, 1000.0) for at, name in began], 2)
    assert (found["calls"], found["busy_ms"], found["launches"]) == (2, 2.0, 2.0)
    groups = {"gemm": {"ms": 1.5, "launches": 1.5}, scan: {"ms": 0.5, "launches": 0.5}}
    assert found["groups"] == groups


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_chunk_state_fwd_kernel", "_chunk_state_fwd_kernel"),
        ("void flashinfer::norm::FusedNorm<8u, __nv_bfloat16>(int)", "flashinfer::norm::FusedNorm"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("void moe::(anonymous namespace)::align<int, (bool)1>(int*, int)", "moe::align"),
        ("kernel_cutlass_kernel_some_layer_object_at", "some_layer_object_at"),
    ],
)
def test_kernels_are_told_by_their_names(gpu, name, short):
    assert load("gputrace").short(name) == short


def test_the_floor_counts_what_a_token_passes(gpu):
    models, subjects = map(load, ("models", "subjects"))
    nano = subjects.flops(subjects.SUBJECTS["nemotron-3-nano"].config, 1, 4096) / 4096 / 2
    assert 2.5e9 < nano < 3.6e9, "about three billion parameters for each token"
    # published: 6.95 billion weights besides the embedding and the head
    qwen3 = subjects.SUBJECTS["qwen3"].config
    assert subjects.flops(qwen3, 1, 4096) / 4096 / 2 == pytest.approx(6.95e9, rel=0.01)
    assert subjects.flops({"model_type": "another"}, 1, 1) is None
    spent = subjects.milliseconds(models.OTHERS["nemotron"], 1, 4096, 690.0)
    assert spent == pytest.approx(91.6, abs=0.5)


def test_attention_kernels_are_those_of_the_model_that_is_timed(gpu, tmp_path):
    """Qwen3-Next has 256 values a head: its first engine compiled its modules in its time."""
    kernels, launch = load("kernels"), load("launch")
    python = fakes.program(tmp_path / "python", 'echo "$@"')
    place = launch.Place((), tmp_path, str(python))
    with kernels.made_ahead(place, "0", kernels.FLASHINFER, head_dim=256) as compiling:
        kernels.wait(compiling, time.time() + 60)
    for kind in kernels.KINDS:
        words = (tmp_path / f"kernels.{kind}.log").read_text().split()
        assert words[1:] == [kind, "256"]


COMPILES = """
import os, time
journal = os.environ["FAKE_JOURNAL"]
time.sleep(3)
open(journal, "a").write("kernels made\\n")
"""


def test_the_first_engine_starts_while_attention_kernels_compile(gain, tmp_path):
    """Both take a minute on a fresh host. Nothing is timed before they are done."""
    fakes.write(tmp_path / "compiler/flashinfer/__init__.py", COMPILES)
    journal = tmp_path / "journal"
    code, _ = gain(*SHORT, "--site", str(tmp_path / "compiler"), FAKE_JOURNAL=str(journal))
    lines = journal.read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(" start")]
    compiled = [number for number, line in enumerate(lines) if line == "kernels made"]
    timed = next(number for number, line in enumerate(lines) if " first-token " in line)
    assert code == 0 and len(compiled) == 3 and max(compiled) < timed
    assert starts[0] < min(compiled)


@pytest.fixture
def traffic(gpu, monkeypatch):
    """tests/gpu/traffic.py, with small loads."""
    module = load("traffic")
    small = dict(SECONDS=1, LONG_REQUESTS=2, LONG_PROMPT=40, NODE_REQUESTS=3, NODE_PROMPT=50)
    for name, value in (small | dict(TURNS=9, PREFIX=30)).items():
        monkeypatch.setattr(module, name, value)
    return module


def test_traffic_is_the_same_for_every_tree_and_other_each_time(traffic):
    for kind in traffic.KINDS:
        assert traffic.made(kind, 1) == traffic.made(kind, 1) != traffic.made(kind, 2)
    with pytest.raises(KeyError):
        traffic.made("nonsense", 1)


def test_turns_are_a_few_tokens_behind_prompts_that_are_cached(traffic):
    found = traffic.made("turns", 1)
    assert [one.prompt[:30] for one in found.requests] == [*found.cached]
    new = {len(one.prompt) - 30 for one in found.requests}
    assert min(new) >= 1 and max(new) <= 16 and len(new) > 3
    assert {(one.answer, one.at_s) for one in found.requests} == {(1, 0.0)} and not found.in_flight


def test_first_tokens_and_later_ones_are_told_apart(traffic):
    found = [traffic.Answered(0.1 * n, 0.1 * n + 0.9, 5, 2, 10) for n in range(1, 5)]
    told = traffic.summary(found, 2.0)
    assert told["first_ms"] == {"p50": 250.0, "p90": 370.0, "p99": 397.0}
    assert told["later_ms"] == {"p50": 100.0, "p99": 100.0}
    assert told["output_tokens_per_s"] == 20.0 and told["cached_tokens"] == 8
    assert traffic.rate(told) == 20.0


def test_both_trees_take_the_traffic_of_users(gain, capsys):
    """Every tree takes each load twice."""
    code, found = gain("--traffic", "prefill", "decode-8", FAKE_STEP="0.03")
    assert code == 0 and found["passed"], found["runs"]
    assert found["gain"]["capture"] == [] and "disable_radix_cache" not in found["gain"]["engine"]
    assert [run["running"] for run in found["runs"]] == [6, 6], "the most that ran at once"
    slow, fast = (run["traffic"] for run in found["runs"])
    assert len(fast["decode-8"]) == 2 and fast["decode-8"][0] != fast["decode-8"][1]
    told = fast["decode-8"][0]
    assert told["requests"] == 8 and [*told["later_ms"]] == ["p50", "p99"]
    last = next(line for line in capsys.readouterr().out.splitlines() if line[:10] == "  decode-8")
    assert [len(cell.split(";")) for cell in last.split("   ") if ";" in cell] == [3, 3]
    assert fast["prefill"][0]["input_tokens_per_s"] > fast["prefill"][0]["output_tokens_per_s"]
    assert all(tree["prefill"][0]["first_ms"]["p50"] > 30 for tree in (slow, fast))


def test_turns_find_their_prefixes_and_say_what_they_replayed(gain):
    code, found = gain("--traffic", "turns", "--trees", "patched")
    (told, _) = found["runs"][0]["traffic"]["turns"]
    assert code == 0 and (told["requests"], told["cached_tokens"]) == (64, 64 * 2048)
    assert told["prefills"] == told["replayed"]["prefills"] == 64


def test_replayed_rows_are_those_of_the_smallest_size_that_fits(gpu):
    replayed = load("bench_engine").replayed
    lines = [{"at": at} | seen(tokens, True, (4, 64, 512)) for at, tokens in enumerate((3, 4, 65))]
    lines.append({"at": 3} | seen(600, False))
    assert replayed(lines, 1) == {"prefills": 2, "tokens": 69, "rows": 4 + 512}


def seen(tokens, replayed, captured=()):
    """A line of an engine's watch."""
    ran = {"runner": "Runner", "launches": 3} if replayed else {"runner": None, "launches": 0}
    return {"tokens": tokens} | ran | ({"captured": list(captured)} if captured else {})


SIZES = (64, 1024)
REPLAYED = [seen(64, True, SIZES), *[seen(512, True)] * 50]


@pytest.mark.parametrize(
    ("ran", "good"),
    [
        (REPLAYED, True),
        (REPLAYED + [seen(2048, False)] * 30, True),  # longer than what was captured
        (REPLAYED + [seen(256, False)] * 30, False),
        (REPLAYED + [seen(2048, False)] * 30 + [seen(256, False)] * 30, False),
        ([], False),
        ([seen(2048, False, SIZES)], False),
        ([seen(64, False)], False),
    ],
)
def test_a_prefill_beyond_the_captured_sizes_may_run_eagerly(gpu, ran, good):
    """A load of long prompts failed, because default sizes end where eager prefill is as fast."""
    module = load("gain")
    entry = {"mode": "breakable", "tree": "patched", "prefills": module.counted(ran)}
    assert module._as_meant(entry) is good


@pytest.fixture
def release(laid, tmp_path) -> Path:
    """An unpacked bundle of another release, whose own tree has no breakable graph."""
    folder = tmp_path / "another"
    shutil.copytree(FAKE / "tree", folder / "tree")
    shutil.copytree(FAKE / "site", folder / "site")
    shutil.copytree(laid, folder / "untouched")
    (folder / "manifest.json").write_text(json.dumps({"version": "0.5.23"}))
    return folder


def test_another_release_of_sglang_runs_as_published(gain, release, monkeypatch):
    monkeypatch.setattr(load("traffic"), "PREFILL_REQUESTS", 20)
    words = ("--shapes", "1x512", "--rounds", "2", "--trees", "patched")
    code, found = gain(*words, "--peer", f"sglang={release}", LOADS=1)
    assert code == 0 and [entry["verdict"] for entry in found["runs"]] == ["passed"]
    (peer,) = found["peers"]
    assert peer["verdict"] == "passed", peer["why"]
    assert (peer["name"], peer["version"], peer["mode"]) == ("sglang", "0.5.23", "eager")
    assert peer["mode_why"] == "the release has no breakable graph"
    assert peer["profile"]["1x512"]["busy_ms"] == 1.28, "its own tree, which is slower"
    assert peer["prefills"]["on_graph"] == 0 and peer["loads"][0]["prefills"] == 20
