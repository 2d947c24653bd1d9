"""tests/gpu/settings.py, on an engine that needs no GPU, and what it compares and tabulates."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import fakes
import gpumodules
import pytest
from gpumodules import GPU
from test_gpu_compare import MODEL, kept_bytecode, run  # noqa: F401

settings = gpumodules.fixture("settings")
checks = gpumodules.fixture("checks", "setting_checks")


def asked(tmp_path: Path, *names: str, fault: str = "", **words: str) -> tuple[int, dict, str]:
    """One run of some settings, with a fault planted in the graph modes."""
    options = ("--model", MODEL, "--limit", "60", *words.pop("more", "").split())
    return run(tmp_path, *options, rows=names, fault=fault, **words)


def rows(*values: float) -> dict:
    return {"single-1": {"answers": [{"hidden": [[value, 1.0] for value in values]}]}}


AGREED = ("context-flag", "context-config", "returns", "mixed-chunk")


def test_servers_that_agree_pass_in_every_setting(tmp_path):
    code, found, said = asked(tmp_path, *AGREED)
    runs = {(one["experiment"], one["mode"]): one["verdict"] + one["why"] for one in found["runs"]}
    modes = ("reference", "breakable", "piecewise")
    assert runs == {(name, mode): "passed" for name in AGREED for mode in modes} and code == 0
    ran = {(one["experiment"], one["mode"]): one["checks"][1]["why"] for one in found["runs"]}
    assert len(ran) == 3 * len(AGREED) and all(why in said for why in ran.values())
    assert ran["returns", "breakable"] == "22 of 22 on the graph"
    eager = "34 of 35 on the graph; eagerly: 1 × runner.py:9: return len(batch.input_ids) <= 4096"
    assert ran["context-config", "breakable"] == eager


@pytest.mark.parametrize(
    ("setting", "fault", "where", "named"),
    [
        ("returns", "shifted", "graph", "hidden states are eager prefill's"),
        ("returns", "stale-experts", "graph", "routed experts are eager prefill's"),
        ("returns", "no-report", "graph", "the report says that the graph is on"),
        ("context-flag", "beyond-context", "graph", "no captured size is beyond the context"),
        ("context-flag", "graph-unused", "graph", "prefills ran on the graph, and the others say"),
        ("mixed-chunk", "never-mixed", "graph", "prefills were mixed with decoding"),
        ("mixed-chunk", "mixes-wrongly", "graph", "agrees with eager prefill, mixed, tokens alone"),
        # the reference itself fails then, by its own answers without mixing
        ("mixed-chunk", "mixes-wrongly", "eager", "eager prefill answers the same mixed"),
    ],
)
def test_a_planted_fault_is_caught(tmp_path, setting, fault, where, named):
    more = {"more": "--mode breakable", "FAKE_FAULT_IN": where}
    code, found, _ = asked(tmp_path, setting, fault=fault, **more)
    good, bad = found["runs"] if where == "graph" else found["runs"][::-1]
    assert (code, good["verdict"], bad["verdict"]) == (1, "passed", "failed")
    wrong = [check["what"] for check in bad["checks"] if not check["good"]]
    assert any(what.startswith(named) for what in wrong)


def lines(*kinds: str, process: str = "1") -> list[dict]:
    """Prefills as the watch writes them: on a graph, eager with a reason, and eager without one."""
    made = {
        "graph": {"runner": "Runner", "launches": 3},
        "refused": {"runner": None, "launches": 0, "why": "too long"},
        "silent": {"runner": None, "launches": 0},
        "nothing launched": {"runner": "Runner", "launches": 0},
    }
    return [made[kind] | {"process": process, "mode": "EXTEND", "at": 1.0} for kind in kinds]


@pytest.mark.parametrize(
    ("seen", "graph", "good"),
    [
        (["graph", "refused"], True, True),
        (["graph", "silent"], True, False),
        (["graph", "nothing launched"], True, False),
        (["refused"], True, False),
        ([], True, False),
        (["refused", "silent"], False, True),
        (["graph", "refused"], False, False),
        ([], False, False),
    ],
)
def test_a_prefill_that_falls_back_without_a_reason_is_a_fault(checks, seen, graph, good):
    assert checks.ran(lines(*seen), graph).good is good


@pytest.mark.parametrize(
    ("first", "second", "words", "good"),
    [
        (["graph", "refused"], ["graph", "refused"], {}, True),
        (["graph", "graph"], ["graph", "refused"], {}, False),
        (["graph", "graph"], ["graph"], {}, False),
        (["graph"], [], {}, False),
        (["graph", "graph"], ["graph"], {"dp_size": 2}, True),
        (["graph", "graph"], ["refused"], {"dp_size": 2}, False),
    ],
)
def test_every_rank_is_looked_at(checks, first, second, words, good):
    """Ranks of one group run each prefill together; with data-parallel attention each its own."""
    seen = lines(*first) + lines(*second, process="2")
    assert checks.ranks(seen, {"ranks": 2, "engine": words}, graph=True).good is good


def test_decoding_beside_other_calls_is_not_taken_for_mixed(checks):
    answers = {"chunked-mixed-0": {"from": 5.0, "to": 6.0}}
    line = {"mode": "MIXED", "runner": None, "launches": 0}
    before, within = (line | {"at": at} for at in (1.0, 5.5))
    assert not checks.mixed([before], answers).good
    assert checks.mixed([before, within], answers).numbers["all"] == 1


@pytest.mark.parametrize(("good", "shown"), [(True, False), (False, True)])
def test_a_control_must_fail(checks, good, shown):
    """Else the comparison would not have found the defect either."""
    agree = [checks.compare.Verdict("agrees with eager prefill, warm", good, "why")]
    assert checks.otherwise(agree, "queue").good is shown


@pytest.mark.parametrize(
    ("model", "version", "without", "setting", "fails"),
    [
        ("nemotron-h-mtp", "0.5.16", "queue", "extra-buffer", True),
        ("nemotron-h-buffer", "0.5.16", "queue", "extra-buffer", False),
        ("nemotron-h-mtp", "0.5.13.post1", "track-under-graph", "extra-buffer", False),
        ("nemotron-h-buffer", "0.5.13.post1", "", "extra-buffer", False),
        ("nemotron-h-mtp", "0.5.16", "queue", "plain", False),
        ("qwen3-next", "0.5.16", "rows-of-ranks", "dp-returns", True),
        ("qwen3-next", "0.5.16", "track-under-graph", "dp-returns", False),
        ("qwen3-next", "0.5.13.post1", "rows-of-ranks", "dp-returns", False),
    ],
)
def test_a_control_fails_where_a_release_is_wrong(checks, model, version, without, setting, fails):
    plan = {"of": model, "setting": setting}
    assert checks.must_fail(plan, {"version": version, "without": without}) is fails


def test_the_release_itself_runs_as_a_control(tmp_path, settings):
    """Its tree is made of the patched one; the fake one has no plan for that."""
    plan = tmp_path / "plan.json"
    untouched = importlib.import_module("untouched")
    hashed = untouched.tree_hash(GPU.parent / "queue/fake_gpu/tree")
    plan.write_text(json.dumps({"tree": hashed, "remove": [], "replace": {}}))
    more = f"--without queue --untouched {tmp_path} --mode breakable"
    code, found, said = asked(tmp_path / "out", "mixed-chunk", more=more)
    assert (code, found["without"]) == (0, "queue")
    assert "on NVIDIA Fake, mixed-chunk without queue: " in said
    ran = (tmp_path / "out/mixed-chunk.qwen3-next.breakable.log").read_text()
    assert "all answers written" in ran
    assert (tmp_path / "out/scratch/untouched/sglang/__init__.py").is_file()


def test_a_patched_version_comes_where_its_release_does():
    before = importlib.import_module("modes").before
    assert before("0.5.15.post1+pcg.2", 16) and not before("0.5.16+pcg.2", 16)


FOLLOW = "def follow(a, b=1): raise ValueError\n"
EAGER = "sglang/srt/prefill_graph/compat/eager"
RULE = "def chunk_gated_delta_rule(q, use_cp='auto'):\n    return q, use_cp\n"


@pytest.mark.parametrize(
    ("code", "variables", "said"),
    [
        ("import package; print(package.follow(1, b=2))", {"FORGET": "package:follow"}, "None"),
        (  # where a subclass of the release's runner refuses, the watch sees nothing else
            "from sglang.srt.prefill_graph.compat import eager; import sitecustomize;"
            " print(eager.why(1, 2), sitecustomize.state['why'])",
            {"REASONS": "1"},
            "few few",
        ),
        (
            "from flashinfer.gdn_prefill import chunk_gated_delta_rule as rule; print(rule(1))",
            {"KEEP_EAGER": "1"},
            "(1, False)",
        ),
    ],
    ids=["left out", "the queue's word", "a reference's delta rule"],
)
def test_what_the_watch_changes_in_an_engine(tmp_path, code, variables, said):
    """As in an engine's own processes, with modules of a folder."""
    eager = "def why(runner, batch):\n    return 'few'\n"
    files = {"package": FOLLOW, EAGER: eager, "flashinfer/gdn_prefill": RULE}
    fakes.write_all(tmp_path, {f"{name}.py": text for name, text in files.items()})
    known = os.environ | {"PYTHONPATH": f"{GPU / 'watch'}{os.pathsep}{tmp_path}"}
    known |= {"PREFILL_WATCH": str(tmp_path / "watch")}
    known |= {f"PREFILL_{name}": value for name, value in variables.items()}
    done = fakes.run(sys.executable, "-c", code, env=known)
    assert done.stdout == f"{said}\n", done.stderr


def test_prefills_before_the_first_question_are_left_out(checks):
    """A server that tries kernels at its start has no graph yet; what it captured is noted once."""
    lines = [{"at": at} for at in (1.0, 5.5, 7.0)]
    lines[0]["captured"] = [16, 64]
    result = {"passes": {"cold": {"single-1": {"from": 5.0, "to": 6.0}}}, "prefills": lines}
    found = checks.within_passes(result)
    assert found["prefills"] == [lines[1]] and found["sizes"] == [16, 64]


@pytest.mark.parametrize(
    ("mine", "good"),
    [
        ((1.0,) * 100, True),
        ((1.001,) * 100, True),
        ((1.1,) * 100, False),
        ((1.0,) * 99, False),
        ((1.0,) * 98 + (3.0,) * 2, True),
        ((1.0,) * 90 + (3.0,) * 10, False),
        ((1.0,) * 99 + (float("nan"),), False),
    ],
)
def test_hidden_states_are_compared_row_by_row(checks, mine, good):
    compare, returned = checks.compare, checks.returned
    limits = compare.Limits(0.05, 0.02, 0.8)
    assert returned.same_rows("states", rows(*mine), rows(*[1.0] * 100), limits).good is good


def test_a_prompt_whose_states_are_all_wrong_is_not_lost_among_others(checks):
    limits = checks.compare.Limits(0.2, 0.04, 0.8)
    right = rows(*[1.0] * 2000) | {"single-2": rows(*[1.0] * 40)["single-1"]}
    wrong = right | {"single-2": rows(*[4.0] * 40)["single-1"]}
    assert checks.returned.same_rows("states", right, right, limits).good
    found = checks.returned.same_rows("states", wrong, right, limits)
    assert not found.good and "40 of 40 rows of single-2[0]" in found.why


def experts(other: int = 0, positions: int = 100, last: int = 1) -> dict:
    """Four layers' pairs of experts, of which the first `other` differ."""
    numbers = [(4, 5) if at < other else (0, last) for at in range(positions * 4)]
    kept = [[number for pair in numbers for number in pair], positions]
    return {"single-100": {"answers": [{"experts": kept}]}}


@pytest.mark.parametrize(
    ("mine", "control", "good"),
    [
        (experts(), 0, True),
        (experts(8), 0, True),
        (experts(9), 0, False),
        (experts(16), 8, True),
        (experts(17), 8, False),
        (experts(120), 200, False),
        (experts(positions=99), 0, False),
        ({"single-100": {"answers": [{}]}}, 0, False),
    ],
)
def test_experts_may_be_exchanged_as_often_as_eager_prefill_does_it(checks, mine, control, good):
    returned = checks.returned
    found = returned.choices(mine, experts(), layers=4, top=2)
    usual = returned.Choices(400, control)
    assert returned.same_choices("experts", found, usual).good is good


def test_experts_of_a_buffer_that_nobody_wrote_prove_nothing(checks):
    empty = experts(last=0)
    found = checks.returned.choices(empty, empty, layers=4, top=2)
    assert not checks.returned.same_choices("experts", found, None).good


def test_what_a_server_returns_is_read_with_and_without_a_detokenizer(checks):
    kept = checks.returned.kept
    packed = "AAAAAAEAAAACAAAAAwAAAA=="  # 0 1 2 3
    assert kept({"routed_experts": packed}, 1) == {"experts": ([0, 1, 2, 3], 1)}
    states = {"hidden_states": [[[1.0] * 20, [2.0] * 20], [3.0] * 20]}  # the prompt's, an answer's
    assert kept(states, 2) == {"hidden": [[1.0] * 16, [2.0] * 16]}
    assert kept({"hidden_states": [[1.0] * 20]}, 1) == {"hidden": [[1.0] * 16]}
    assert kept({}, 1) == {}


def test_a_release_that_lacks_an_argument_is_left_out_with_the_reason(settings):
    setting, lacking = settings.SETTINGS["mixed-chunk"], "enable_mixed_chunk"
    known = {"disable_piecewise_cuda_graph", "enable_breakable_cuda_graph"}
    why = settings.unavailable(setting, "nemotron-h", "breakable", known)
    assert why == f"the release does not know {lacking}"
    assert not settings.unavailable(setting, "nemotron-h", "breakable", known | {lacking})


RUNNER = "sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py"
SCHEDULER = "sglang/srt/managers/scheduler.py"
ASKED = "if forward_batch.return_logprob"


@pytest.mark.parametrize(
    ("file", "text", "served"),
    [
        ("", "", [True, True, True]),
        # the runner of 0.5.16 and later says whether it runs what follows the layers eagerly
        (RUNNER, f"{ASKED}:\n", [True, True, True]),
        (RUNNER, f"{ASKED} and not self._uses_eager_prefill_tail():\n", [True, False, False]),
        # 0.5.6's scheduler moves a start behind the prompt to its last token, 0.5.7's does not
        (SCHEDULER, "if req.logprob_start_len > len(req.origin_input_ids):\n", [True, True, True]),
        (
            SCHEDULER,
            "if not req.is_prefill_only and req.logprob_start_len >= len(\n"
            "    req.origin_input_ids\n",
            [True, False, False],
        ),
    ],
)
def test_log_probabilities_are_not_asked_of_a_graph_that_serves_none(
    settings, tmp_path, file, text, served
):
    if file:
        fakes.write(tmp_path / file, text)
    told, modes = importlib.import_module("commandline"), settings.modes
    graphs = (modes.BREAKABLE, modes.PIECEWISE, modes.INDUCTOR)
    options = SimpleNamespace(tree=tmp_path)
    assert [told.serves_logprobs(options, mode) for mode in graphs] == served


@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        ({"tree": {"patches": ["prefill-graph/report-verdict", "prefill-graph/log-tree"]}}, True),
        ({"tree": {"patches": ["prefill-graph/log-tree"]}}, False),
        ({"tree": {}}, True),
        ("python -m ended with 1", True),
        (None, False),
    ],
)
def test_a_report_is_asked_of_releases_that_make_one(checks, report, wanted):
    """Later releases leave none, nor do other trees. Where nothing is known, one is missing."""
    assert checks.graphs.reports(report) is wanted
