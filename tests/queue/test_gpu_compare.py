"""tests/gpu, on an engine that needs no GPU: each planted fault is caught and named."""

import argparse
import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fakes
import gpumodules
import pytest
from fakes import ROOT
from gpumodules import GPU

from bundle.release import SCRIPTS
from patchqueue.files.tree import hash_python, list_package

FAKE = Path(__file__).parent / "fake_gpu"
MODEL = "qwen3-next"
PIECEWISE = ("--model", MODEL, "--mode", "piecewise")
# a script of tests/gpu that leaves an engine a second to end by itself, in place of five
HASTY = f"""
import sys
sys.path.insert(0, {str(GPU)!r})
import launch, run
launch.GRACE_S = 1
sys.exit(run.main())
"""


@pytest.fixture(autouse=True)
def kept_bytecode(tmp_path: Path, engine_bytecode: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/bytecode").symlink_to(engine_bytecode)


def gpu_host(**variables: str) -> dict[str, str]:
    """The variables of a host with a GPU, the fake one."""
    known = os.environ | {"PATH": f"{FAKE / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    known.pop("CUDA_VISIBLE_DEVICES", None)
    return known | variables


def weights(out: Path) -> None:
    """The fake engine has none."""
    fakes.write(out / "scratch/models" / MODEL / "model.safetensors")


def started(
    out: Path, *words: str, fault: str = "", tree: Path = FAKE / "tree", **variables: str
) -> subprocess.Popen[str]:
    """A run of the fake engine, under way."""
    weights(out)
    place = {"--out": out, "--tree": tree, "--site": FAKE / "site"}
    named = [str(word) for pair in place.items() for word in pair]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = gpu_host(FAKE_FAULT=fault, **variables)
    return subprocess.Popen([sys.executable, "-c", HASTY, *words, *named], env=environment, **pipes)


def run(out: Path, *words: str, rows: Sequence[str] = (), **how) -> tuple[int, dict, str]:
    """Some rows on the fake engine: exit code, the last one's facts with all runs, what it said."""
    with started(out, *rows, *words, **how) as process:
        said, _ = process.communicate(timeout=300)
    names = [f"{row}.json" for row in rows] or ["evidence.json"]
    found = [json.loads((out / name).read_text()) for name in names]
    runs = [run for one in found for run in one["runs"]]
    return process.returncode, found[-1] | {"runs": runs}, said


@pytest.fixture
def unrecorded(tmp_path: Path) -> Path:
    """A tree that the queue did not make, as a wheel of 0.5.23 has it."""
    shutil.copytree(FAKE / "tree/sglang", tmp_path / "checkout/python/sglang")
    version = tmp_path / "checkout/python/sglang/_version.py"
    version.write_text("__version__ = version = '0.5.9'\n__commit_id__ = commit_id = None\n")
    return tmp_path / "checkout/python"


def test_a_tree_without_a_record_names_no_queue_and_without_log_probabilities_tokens_judge(
    tmp_path, unrecorded
):
    """The piecewise graph of 0.5.16 and later returns no log-probabilities."""
    file = unrecorded / "sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("def _uses_eager_prefill_tail(self): ...\n")
    code, found, said = run(tmp_path, *PIECEWISE, tree=unrecorded)
    assert code == 0 and "0.5.9 (made by no queue) on 1 x NVIDIA Fake" in said
    assert (found["version"], found["tag"]) == ("0.5.9", "v0.5.9")
    assert found["patches"] == []
    assert found["tree"] == hash_python(list_package(unrecorded))
    one = next(one for one in found["runs"] if one["mode"] == "piecewise")
    alike = [check["why"] for check in one["checks"] if " same when" in check["what"]]
    assert "872 tokens alike (0 ties), tokens alone" in alike[0]


def test_an_unpacked_bundle_needs_no_word_of_where_it_lies(tmp_path):
    """As `unpack` lays it: tree/, site/ and the scripts, with the configs beside them."""
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    for name in SCRIPTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, bundle / name, ignore=ignored)
    for name in ("tree", "site"):
        shutil.copytree(FAKE / name, bundle / name)
    (bundle / "manifest.json").write_text('{"packages": ["sglang-kernel==1"]}')
    weights(out)
    (out / "scratch/bytecode").symlink_to((tmp_path / "scratch/bytecode").resolve())
    words = [sys.executable, bundle / "tests/gpu/run.py", "--out", out, *PIECEWISE]
    done = subprocess.run(words, env=gpu_host(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "evidence.json").read_text())
    assert found["passed"] and found["packages"] == ["sglang-kernel==1"]


def test_engines_that_agree_pass(tmp_path):
    """Of every mode, without a fault."""
    code, found, said = run(tmp_path, "--model", MODEL, "--port-base", "40000")
    runs = {entry["mode"]: entry for entry in found["runs"]}
    assert code == 0 and {entry["verdict"] for entry in runs.values()} == {"passed"}, said
    assert [*runs] == ["reference", "breakable", "piecewise", "piecewise-inductor", "eager"]
    captured = {"what": "piecewise CUDA graph", "seconds": 5.36, "gb": 0.12}
    assert runs["piecewise"]["captured"] == [captured]
    facts = (found["version"], found["tree_untouched"], found["gpu"]["name"], found["gpus"])
    assert facts == ("0.5.9", True, "NVIDIA Fake", 1) and found["torch"]["off_pin"]
    used = {mode: entry["checks"][0]["numbers"] for mode, entry in runs.items()}
    assert used["piecewise"]["several"] == used["breakable"]["several"] == [2, 3, 4, 8, 12, 16]
    assert not used["eager"]["on_graph"]
    reference = runs["reference"]
    assert reference["flags"]["piecewise_cuda_graph_tokens"] == [16]
    assert used["reference"]["on_graph"] == used["reference"]["launches"] == 0
    itself = "eager prefill against itself in other batches"
    [control] = [check for check in reference["checks"] if check["what"] == itself]
    assert control["good"] and control["numbers"]["tokens"] == 82 * 8 + 109 * 8


@pytest.mark.parametrize(
    ("fault", "where", "verdicts", "named"),
    [
        ("wrong-token", "graph", "passed, failed", "token 3 is 5, not"),
        ("graph-unused", "graph", "passed, failed", "115 of 115 did not, first one of 1 tokens"),
        ("never-flushed", "graph", "passed, failed", "prompts of their own find an empty cache: "),
        ("no-cache", "graph", "passed, failed", "continue earlier ones hit the cache: missed in"),
        ("dies", "graph", "passed, failed", "planted: the engine does not start"),
        ("not-captured", "eager", "failed, passed", "the reference's server has a prefill graph: "),
        # NemotronH in the piecewise graph from 0.5.19 on: its servers were judged failed
        ("refused", "graph eager", "not applicable, not applicable", "has no attention"),
    ],
)
def test_a_planted_fault_is_caught(tmp_path, fault, where, verdicts, named):
    code, found, said = run(tmp_path, *PIECEWISE, fault=fault, FAKE_FAULT_IN=where)
    assert ", ".join(one["verdict"] for one in found["runs"]) == verdicts, said
    whys = [one["why"] for one in found["runs"]]
    assert named in " ".join(whys) and code == ("failed" in verdicts)


def test_a_second_run_into_the_same_folder_judges_no_older_answers(tmp_path):
    """Of what an earlier one left, answers and what the watch saw."""
    assert run(tmp_path, *PIECEWISE)[0] == 0
    line = {"at": 1, "tokens": 16, "requests": 2, "runner": "Runner", "launches": 1}
    kept = json.dumps(line | {"captured": [16]})
    (tmp_path / "qwen3-next.piecewise.watch.1").write_text(f"{kept}\n")
    graph = run(tmp_path, *PIECEWISE, fault="graph-unused")[1]["runs"][1]
    assert graph["verdict"] == "failed" and graph["checks"][0]["numbers"]["on_graph"] == 0


def test_what_had_no_time_was_not_run(tmp_path):
    code, found, said = run(tmp_path, *PIECEWISE, "--limit", "4", fault="stuck")
    late = found["runs"][1]
    assert (code, late["verdict"]) == (1, "not run"), said
    assert late["why"].startswith("no time was left") and alive(tmp_path) == []


def test_a_run_that_is_ended_ends_its_engines_and_writes_what_it_has(tmp_path):
    def verdicts() -> list[tuple[str, str]]:
        written = json.loads((tmp_path / "evidence.json").read_text())
        return [(one["verdict"], one["why"]) for one in written["runs"]]

    ready = tmp_path / f"{MODEL}.piecewise.json.ready"
    with started(tmp_path, *PIECEWISE, "--width", "1", fault="stuck") as process:
        try:
            until = time.time() + 100
            while not ready.exists() and time.time() < until:
                time.sleep(0.05)
            assert [verdict for verdict, _ in verdicts()] == ["passed", "not run"]
        finally:
            process.terminate()
    assert process.returncode and alive(tmp_path) == []
    assert verdicts() == [("passed", ""), ("not run", "the run was ended")]


def alive(folder: Path) -> list[int]:
    """The processes of a run that still are there, less those that nobody has waited for."""
    found = []
    for file in folder.glob("*.pid"):
        status = Path(f"/proc/{file.stem}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(int(file.stem))
    return found


@pytest.mark.parametrize(
    ("fault", "where", "graph", "why"),
    [
        ("dies-later", "graph", "failed", "exit code 9"),
        ("stuck", "graph", "failed", "without an answer"),
        ("hangs", "graph", "passed", ""),
        ("dies", "eager", "not run", "its reference did not run"),
    ],
)
def test_a_run_on_several_gpus_ends_whatever_becomes_of_engines(tmp_path, fault, where, graph, why):
    modes = ("eager", "piecewise", "breakable")
    words = ("--model", MODEL, "--mode", *modes, "--width", "1", "--engine-limit", "4")
    # only GPUs that are allowed; where the reference dies nothing else is started
    first, second = allowed = ("GPU-00000001-fake", "0")
    devices = {first, "" if fault == "dies" else second}
    gpus = {"FAKE_GPUS": "3", "CUDA_VISIBLE_DEVICES": ",".join(allowed)}
    code, found, said = run(tmp_path, *words, fault=fault, FAKE_FAULT_IN=where, **gpus)
    assert (found["gpus"], {entry["device"] for entry in found["runs"]}) == (2, devices), said
    runs = {entry["mode"]: entry for entry in found["runs"]}
    assert [runs[mode]["verdict"] for mode in ("piecewise", "breakable")] == [graph] * 2
    assert why in runs["piecewise"]["why"]
    assert alive(tmp_path) == [] and code == (graph != "passed")


kernels = gpumodules.fixture("kernels")


def test_what_compiles_beside_the_engines_ends_with_them(tmp_path, kernels):
    line = 'touch "$$.pid" "$CUDA_VISIBLE_DEVICES.device"\nexec sleep 600'
    slow = fakes.program(tmp_path / "python", line)
    place = importlib.import_module("launch").Place((), tmp_path, str(slow))
    with kernels.made_ahead(place, "3", kernels.FLASHINFER):
        until = time.time() + 60
        while len(alive(tmp_path)) < len(kernels.KINDS) and time.time() < until:
            time.sleep(0.01)
        assert len(alive(tmp_path)) == len(kernels.KINDS) and (tmp_path / "3.device").exists()
    assert alive(tmp_path) == []


compare, cases, modes, graphs = map(gpumodules.fixture, ("compare", "cases", "modes", "graphs"))


def answer(tokens, logprobs=None, margin=1.0) -> dict:
    logprobs = logprobs or [-1.0] * len(tokens)
    best = [[value, value - margin] for value in logprobs]
    return {"tokens": tokens, "logprobs": logprobs, "best": best, "cached": 0}


def ones(*parts: tuple[int, float]) -> dict:
    """An answer of the same token, so often with each log-probability."""
    logprobs = [value for count, value in parts for _ in range(count)]
    return answer([1] * len(logprobs), logprobs)


def verdict(compare, mine: dict, reference: dict, **limits):
    both = ({"call": {"answers": [each]}} for each in (mine, reference))
    return compare.same_answers("same", *both, **limits)


NAN = float("nan")
FAR, NAN_BEHIND = [-1.0] * 9 + [-9.0] * 2, [-1.0] * 9 + [NAN]


@pytest.mark.parametrize(
    ("mine", "reference", "limits", "good"),
    [
        (answer([1, 2]), answer([1, 2]), "STRICT", True),
        (answer([1]), answer([1, 2]), "STRICT", False),
        # another token, where the reference was undecided and where it was not
        (answer([1] * 9 + [2]), answer([1] * 9 + [9], margin=0.2), "STRICT", True),
        (answer([1] * 9 + [2]), answer([1] * 9 + [9], margin=0.31), "STRICT", False),
        # nothing is compared behind such a tie, and what is compared must be enough
        (
            answer([1] * 9 + [2, 3], FAR),
            answer([1] * 9 + [9, 4], margin=0.1),
            "STRICT",
            True,
        ),
        (answer([1, 2, 3, 4]), answer([1, 9, 4, 4], margin=0.1), "ROUTED", False),
        # log-probabilities: within the tolerance, beyond it, all of them a little off
        (ones((19, -1.0), (1, -0.99)), ones((20, -1.0)), "STRICT", True),
        (ones((19, -1.0), (1, -0.84)), ones((20, -1.0)), "STRICT", False),
        (ones((8, -1.03)), ones((8, -1.0)), "STRICT", False),
        # a router moves a few tokens far, and not all of them a little
        (ones((4, -1.4), (96, -1.0)), ones((100, -1.0)), "ROUTED", True),
        (ones((5, -1.4), (95, -1.0)), ones((100, -1.0)), "ROUTED", False),
        (ones((100, -1.06)), ones((100, -1.0)), "ROUTED", False),
        # a share of a token allows a whole one
        (ones((1, -1.4), (61, -1.0)), ones((62, -1.0)), (0.05, 0.002, 0.6), True),
        (ones((2, -1.4), (60, -1.0)), ones((62, -1.0)), (0.05, 0.002, 0.6), False),
        # no limits and no tie excuse what is not a number, on either side
        (ones((19, -1.0), (1, NAN)), ones((20, -1.0)), "STRICT", False),
        (ones((99, -1.0), (1, NAN)), ones((100, -1.0)), "ROUTED", False),
        (answer([1] * 9 + [0], NAN_BEHIND), answer([1] * 9 + [9], margin=0.1), "ROUTED", False),
        (ones((9, -1.0)), ones((8, -1.0), (1, NAN)), "ROUTED", False),
    ],
)
def test_an_answer_is_held_against_the_references(compare, mine, reference, limits, good):
    named = getattr(compare, limits) if isinstance(limits, str) else compare.Limits(*limits)
    assert verdict(compare, mine, reference, limits=named).good is good


def tallied(compare, far: int, of: int = 200, off: float = 0.4):
    """A comparison in which `far` of `of` tokens are off."""
    both = ones((far, -1.0 - off), (of - far, -1.0)), ones((of, -1.0))
    return compare.tally(tuple({"call": {"answers": [each]}} for each in both))


@pytest.mark.parametrize(
    ("router", "inductor", "moved", "allowed"),
    [
        (False, True, 8, (0.02, 0.0, 0.8)),  # a dense model: strict, whatever its control says
        (True, False, None, (0.02, 0.0, 0.8)),  # a router without a control
        (True, False, 0, (0.02, 0.0, 0.8)),
        (True, False, 3, (0.02, 0.03, 0.6)),  # twice what eager prefill moves by itself,
        (True, False, 20, (0.05, 0.04, 0.6)),  # and no more than that
        (True, True, 0, (0.05, 0.04, 0.6)),
    ],
)
def test_limits_follow_from_the_model_and_its_control(compare, router, inductor, moved, allowed):
    control = None if moved is None else tallied(compare, moved)
    found = compare.limits(router, inductor, control)
    assert (found.mean, found.far, found.compared) == pytest.approx(allowed)


@pytest.mark.parametrize(
    ("router", "far", "off", "good"),
    [
        (False, 0, 0.4, True),
        (False, 1, 0.4, False),
        (True, 8, 0.4, True),
        (True, 9, 0.4, False),
        (True, 1, NAN, False),
    ],
)
def test_a_control_that_moves_more_than_any_graph_may_fails(compare, router, far, off, good):
    assert compare.against_itself(tallied(compare, far, off=off), router).good is good
    with pytest.raises(ValueError):  # a pass that lacks an answer
        compare.tally(({"call": {"answers": []}}, {"call": {"answers": [answer([1])]}}))


def asked(compare, kinds: dict[str, tuple[int, int]], of: int = 8) -> tuple[dict, dict]:
    """(answers, the reference's) of kind: (prompts, how many are wrong from the start on)."""

    def answers(token: int, which: int) -> dict:
        names = [f"{kind}-{n}" for kind, counts in kinds.items() for n in range(counts[which])]
        return {name: {"answers": [answer([token] * of)]} for name in names}

    right = answers(1, 0)
    return right | answers(2, 1), right


PROMPTS = dict(single=12, fill=54, batch=24, chunked=6, prefix=7, memory=4, size=31)
NONE_WRONG = {kind: (count, 0) for kind, count in PROMPTS.items()}
FEW_WRONG = dict(single=3, fill=11, batch=3, chunked=2, prefix=2, memory=1)


def control_of(compare, **moved: int):
    """Eager prefill against itself: a token in each of `moved` prompts of 1499 is far off."""
    kinds = {kind: (count, 0) for kind, (count, _) in NONE_WRONG.items() if kind != "size"}
    mine, right = asked(compare, kinds | {"fill": (54 + 80, 0)})
    for kind, count in moved.items():
        for n in range(count):
            mine[f"{kind}-{n}"] = {"answers": [answer([1] * 8, [-1.4] + [-1.0] * 7)]}
    return compare.tally((mine, right))


@pytest.mark.parametrize(
    ("inductor", "wrong", "named"),
    [
        # inductor may move no kind of call as a whole
        (True, {"chunked": 6}, "6 of 6 prompts of kind chunked"),
        (True, {"prefix": 7}, "7 of 7 prompts of kind prefix"),
        (True, {"chunked": 6, "prefix": 7}, "6 of 6 prompts of kind chunked"),
        (True, {"size": 31}, "31 of 31 prompts of kind size"),
        (True, {"memory": 2}, "2 of 4 prompts of kind memory"),
        (True, FEW_WRONG, ""),
        # another graph twice the prompts that eager prefill moves of a kind: six tokens of some 900
        # are within the share, three chunked prompts of three are not
        (False, {"chunked": 3}, "3 of 6 prompts of kind chunked"),
        (False, {"fill": 2, "batch": 1}, ""),
        (False, {"size": 1}, ""),
        (False, {"size": 2}, "2 of 31 prompts of kind size"),
        (False, {"prefix": 2}, "2 of 7 prompts of kind prefix"),
    ],
)
def test_a_graph_may_move_few_prompts_of_a_kind(compare, inductor, wrong, named):
    kinds = NONE_WRONG | {kind: (PROMPTS[kind], count) for kind, count in wrong.items()}
    control = tallied(compare, 3) if inductor else control_of(compare, fill=2, batch=1)
    limits = compare.limits(True, inductor, control)
    found = compare.same_answers("same", *asked(compare, kinds), limits)
    assert found.good is (not named) and (found.good or named in found.why), found.why


def seen(tokens: int, requests: int = 2, **more) -> dict:
    """A prefill on the graph, as the watch writes it."""
    line = {"tokens": tokens, "requests": requests, "runner": "Runner", "launches": 1}
    return line | more


EAGERLY = {"runner": None, "launches": 0}
RULE = "is_draft_extend"
LEFT_OUT = EAGERLY | {"why": f"runner.py:9: and any({RULE}) return False"}


@pytest.mark.parametrize(
    ("prefills", "sizes", "words", "good"),
    [
        ([seen(16, 1, captured=[16]), seen(16, 1)], [16], {}, False),
        ([seen(16, 1, captured=[16]), seen(16)], [16], {}, True),
        ([seen(16, 1, captured=[16]), seen(16)], [16, 32], {}, False),
        ([seen(16, 1, captured=[16]), seen(16)], [16], {"several_wanted": (2, 8)}, False),
        ([seen(16, 1), seen(16)], [16], {}, False),  # what was captured is not known
        # too padded for the release, from 0.5.16 on: up to twice the tokens, 7 do not fit 16
        ([seen(8, captured=[16], padding=2), seen(7, **EAGERLY)], [16], {}, True),
        ([seen(8, captured=[16], padding=2, **EAGERLY), seen(7, **EAGERLY)], [16], {}, False),
        ([seen(8, captured=[16], padding=None), seen(7, **EAGERLY)], [16], {}, False),
        ([seen(8, captured=[16], padding=16), seen(7, **EAGERLY)], [16], {}, False),
        # left out by a rule of the release, as Kimi-Linear's with a cached prompt on 0.5.16
        ([seen(16, captured=[16]), seen(16, 4, **LEFT_OUT)], [16], {"refusing": RULE}, True),
        ([seen(16, captured=[16]), seen(16, 4, **LEFT_OUT)], [16], {}, False),
        ([seen(16, captured=[16]), seen(16, 4, **EAGERLY)], [16], {"refusing": RULE}, False),
    ],
)
def test_every_prefill_that_fits_ran_on_the_graph(graphs, prefills, sizes, words, good):
    found = graphs.graph_used(prefills, sizes, wanted=True, **words)
    assert found.good is good
    assert found.numbers.get("refused", 0) == (good and "refusing" in words)


def test_captured_sizes_are_filled_by_uneven_requests_and_come_in_every_order(cases):
    calls = [call for call in cases.calls() if call.name.startswith("fill-")]
    filling = [[len(prompt) for prompt in call.prompts] for call in calls]
    wanted = [(count, total) for count in (1, 2, 8, 16) for total in (253, 256)]
    assert sorted({(len(sizes), sum(sizes)) for sizes in filling}) == wanted
    assert all(len(set(sizes)) > len(sizes) / 2 for sizes in filling)
    # every captured size comes once behind every other
    lengths = [len(call.prompts[0]) for call in cases.size_calls()]
    padded = [min(size for size in cases.CAPTURE if size >= length) for length in lengths]
    steps = list(itertools.pairwise(padded))
    assert len(steps) == len(set(steps)) == 30
    assert set(steps) == set(itertools.permutations(cases.CAPTURE, 2))
    assert {length in cases.CAPTURE for length in lengths} == {True, False}


COMMON = {"piecewise_cuda_graph_tokens", "piecewise_cuda_graph_compiler"}
OPT_IN = COMMON | {"enable_piecewise_cuda_graph"}
OPT_OUT = COMMON | {"disable_piecewise_cuda_graph", "enforce_piecewise_cuda_graph"}


def session_of(out: Path, known: set[str] = frozenset(), *words: str):
    """A session of run.py, whose tree has arguments of these names; nothing has run."""
    load = importlib.import_module
    options = load("run").parse([*words, "--out", str(out)])
    facts = {"patches": [], "version": "0.5.16", "without": options.without}
    place = load("launch").Place((), out)
    return load("experiment").Session(place, options, facts, set(known), 0.0)


def wanted(known: set[str], *words: str) -> list[tuple[str, str]]:
    """What the proof runs: (model, mode)."""
    row = importlib.import_module("experiments").EXPERIMENTS["proof"]
    session = session_of(Path("there"), known, *words)
    models = session.options.model or row.models
    return importlib.import_module("proof").wanted(models, session.modes(row), known)


BACKENDS = {"cuda_graph_backend_prefill", "cuda_graph_bs_prefill"}
BY_BACKEND = BACKENDS | {"cuda_graph_tc_compiler"}
BACKEND, SIZE = "cuda_graph_backend_prefill", {"cuda_graph_bs_prefill": [16]}
FEW = {"piecewise_cuda_graph_tokens": [16]}
TC = {BACKEND: "tc_piecewise", "cuda_graph_tc_compiler": "eager"}
BROKEN = {"enable_breakable_cuda_graph": True}
PIECES = {"piecewise_cuda_graph_compiler": "eager"}


@pytest.mark.parametrize(
    ("mode", "known", "sizes", "chosen"),
    [
        # the reference has the graph on: some releases pick other kernels where it is off
        ("reference", BACKENDS, [16, 32], SIZE | {BACKEND: "breakable"}),
        ("reference", BY_BACKEND, [16, 32], SIZE | TC),
        ("reference-breakable", BY_BACKEND, [16, 32], SIZE | {BACKEND: "breakable"}),
        ("reference", OPT_IN, [16, 32], FEW | PIECES | {"enable_piecewise_cuda_graph": True}),
        ("reference", OPT_OUT | {*BROKEN}, [16, 32], FEW | BROKEN),
        # one that is off by itself is asked for, one of no size is the release's choice
        ("piecewise", OPT_IN, [16], FEW | PIECES | {"enable_piecewise_cuda_graph": True}),
        ("breakable", {*FEW, *BROKEN}, [], BROKEN),
        ("breakable", {BACKEND}, [], {BACKEND: "breakable"}),
        ("breakable", OPT_IN, [16], None),
    ],
)
def test_the_arguments_of_a_mode(modes, mode, known, sizes, chosen):
    found = modes.flags(mode, known, sizes, False)
    if chosen is None:
        assert isinstance(found, modes.Unavailable)
    else:
        assert found == chosen


def test_the_reference_picks_the_kernels_of_what_is_held_against_it(modes):
    """From 0.5.14 models ask whether the graph is the piecewise one."""
    references = [modes.reference(mode, BY_BACKEND) for mode in (*modes.GRAPHS, modes.EAGER)]
    breakable, piecewise = modes.BREAKABLE_REFERENCE, modes.REFERENCE
    assert references == [breakable, piecewise, piecewise, breakable]
    for known in (OPT_IN, OPT_OUT, BACKENDS):
        assert {modes.reference(mode, known) for mode in modes.GRAPHS} == {piecewise}


GRAPHS = ["breakable", "piecewise", "piecewise-inductor", "eager"]


@pytest.mark.parametrize(
    ("known", "models", "ran"),
    [
        (OPT_IN, ["llama", "qwen3-next"], ["reference", *GRAPHS]),
        (BY_BACKEND, ["llama", "qwen3-next"], ["reference", "reference-breakable", *GRAPHS]),
        # a piecewise graph refuses mixers beside attention, and a reference without one is none
        (BY_BACKEND, ["falcon-h1"], ["reference-breakable", "breakable", "eager"]),
        (OPT_OUT | {*BROKEN}, ["falcon-h1"], ["reference", "breakable", "eager"]),
        (OPT_OUT, ["falcon-h1"], []),
    ],
)
def test_references_run_first_and_a_server_without_a_graph_last(modes, known, models, ran):
    pairs = [(model, mode) for mode in ran for model in models]
    assert wanted(known, "--model", *models) == pairs


judging = gpumodules.fixture("judging")
MOVED = 4  # tokens that the reference moves by itself, asked prompt by prompt


def judged(judging, far_again: int, model: str) -> dict:
    """judging.checks of a piecewise engine that moves `far_again` tokens when asked again."""

    def asked(name: str, far: int = 0) -> dict:
        made = {}
        for call in importlib.import_module("cases").of_pass(name):
            answers = made[call.name] = {"answers": []}
            for _ in call.prompts:
                off = min(8, far)
                answers["answers"].append(ones((off, -1.4), (8 - off, -1.0)))
                far -= off
        return made

    same = {name: asked(name) for name in ("cold", "warm", "sizes")}
    result = {"prefills": [], "flags": {}, "dropped_flags": []}
    result["passes"] = same | {"again": asked("again", far_again)}
    reference = {"passes": same | {"alone": asked("alone", MOVED)}}
    found = judging.checks(model, "piecewise", result, reference)
    return {verdict.what: verdict for verdict in found}


@pytest.mark.parametrize(
    ("far", "model", "good"),
    [(0, "llama", True), (1, "llama", False), (1, "qwen3-next", True), (40, "qwen3-next", False)],
)
def test_what_is_asked_again_has_the_limits_of_its_mode(judging, far, model, good):
    """Requests meet in other batches then: eager prefill's control says how much that moves."""
    assert judged(judging, far, model)["answers the same when asked again"].good is good


@pytest.mark.parametrize(
    ("cold", "again", "lead", "good"),
    [
        ([1, 2, 3], [1, 2, 3], 9.0, True),
        ([1, 2, 3], [1, 4, 3], 0.1, True),  # eager prefill was undecided there
        ([1, 2, 3], [1, 4, 3], 9.0, False),
        ([5, 2, 3], [5, 4, 3], 0.1, False),  # behind another token it says nothing
        ([5, 2, 3], [1, 2, 3], 0.1, True),
    ],
)
def test_asked_again_without_log_probabilities_eager_prefill_says_what_is_a_tie(
    compare, cold, again, lead, good
):
    """Of 0.5.16's piecewise graph one prompt of 109 went the other way at a tie: "led by inf"."""
    best = [[-1.0, -1.0 - lead]] * 3
    reference = {"single-3": {"answers": [{"tokens": [1, 2, 3], "best": best}]}}
    asked = {"single-3": {"answers": [{"tokens": cold}]}}
    known = compare.with_leads(asked, reference)
    limits = compare.replace(compare.STRICT, compared=0.0)
    mine = {"single-3": {"answers": [{"tokens": again}]}}
    other = {"other-1": {"answers": [{"tokens": [1]}]}}  # so that a token was compared
    found = compare.same_answers("again", mine | other, known | other, limits)
    assert found.good is good, found.why


MOE = "nemotron-h-moe"
BROUGHT = [{"name": "nsa/split-indexer-and-attention@0.5.12.patch"}]
commandline, proof = map(gpumodules.fixture, ("commandline", "proof"))


@pytest.mark.parametrize(
    ("patches", "op", "trimmed", "takes"),
    [
        ([], "", [], False),
        (BROUGHT, "", ["sgl_kernel/flash_ops*"], True),
        ([], "topk_indices", [], True),
        ([], "topk_indices", ["sgl_kernel/flash_ops*"], False),
    ],
)
def test_sparse_attention_is_tried_where_the_tree_and_its_packages_have_it(
    commandline, tmp_path, patches, op, trimmed, takes
):
    """From 0.5.13 on it asks for kernels that a bundle trims."""
    fakes.write(tmp_path / "tree/sglang/srt/layers/radix_attention.py", op)
    manifest = {"trimmed": [{"reason": "1 GB", "patterns": trimmed}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    options = argparse.Namespace(tree=tmp_path / "tree", site=[tmp_path])
    assert commandline.takes_sparse(options, patches) is takes


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ("MLP: NemotronHMLPDecoderLayer,", {"this tree's NemotronH has no experts": [MOE]}),
        ("MLP: NemotronHMLPDecoderLayer,\n    MOE: NemotronHMoEDecoderLayer,", {}),
        ("", {"this tree's NemotronH has no experts": [MOE]}),
        (None, {}),
    ],
)
def test_experts_are_left_out_where_the_trees_nemotron_has_none(proof, tmp_path, layers, why):
    """0.5.5's died of the letter E while it was made. A tree without that file says nothing."""
    options = argparse.Namespace(tree=tmp_path)
    if layers is not None:
        text = f"ALL_DECODER_LAYER_TYPES = {{\n    {layers}\n}}\n"
        fakes.write(tmp_path / "sglang/srt/models/nemotron_h.py", text)
    assert proof.left_out(options, ["llama", MOE, "nemotron-h"], []) == why


def test_prompts_whose_beginning_does_not_matter_are_seen(compare):
    first = {"a": {"answers": [answer([1, 2])]}}
    for second, good in ((2, False), (3, True)):
        both = first | {"b": {"answers": [answer([1, second])]}}
        assert compare.remembers(both, [("a", "b")]).good is good
