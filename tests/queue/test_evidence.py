"""Evidence is taken only where it is about today's tree; the matrix says what it shows, and why the
rest is not shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import fakes
import pytest
from fakes import TAG, VERSION
from packaging.version import Version

from evidence import cells, harness, matrix, store
from evidence.pages import status
from evidence.records import Record
from patchqueue.laying.selection import Selection
from patchqueue.outcome import Refused
from patchqueue.queue import series
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]


def result(project, **changes) -> dict:
    """What a host would write about the project's tree as it is now."""
    record = project.apply().record
    found = {
        "schema": 1,
        "version": VERSION,
        "tag": TAG,
        "queue": record["queue"],
        "changes": record["changes"],
        "tree": record["tree"]["after"],
        "tree_untouched": True,
        "date": "2030-01-02",
        "gpu": {"name": "NVIDIA Fake 1"},
        "torch": {"version": "2.11.0+cu130", "pinned": "2.9.1", "off_pin": True},
        "kernel": None,
        "runs": [
            {
                "model": "one",
                "mode": "eager",
                "verdict": "passed",
                "why": "see /tmp/there/log.txt",
                "report": {
                    "servers": [
                        {
                            "feature": "graph",
                            "verdict": "on",
                            "reason": "captured",
                            "offender": None,
                            "model": "/tmp/there/models/one",
                            "pid": 7,
                        },
                        {
                            "feature": "graph",
                            "verdict": "off",
                            "reason": "not asked for",
                            "offender": None,
                            "model": "/tmp/there/models/two",
                            "pid": 8,
                        },
                    ]
                },
            }
        ],
    }
    return found | changes


def take(project, tmp_path, found: dict) -> store.Taken:
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps(found))
    [taken] = store.take(project.root, pins.load(project.root), file)
    return taken


def test_a_result_is_kept_by_release_and_gpu_without_its_hosts_paths(applied, tmp_path):
    taken = take(applied, tmp_path, result(applied))
    assert taken.path == applied.root / "evidence/9.9.1/nvidia-fake-1.json" and taken.passed
    kept = json.loads(taken.path.read_text())
    assert (
        "/tmp" not in taken.path.read_text()
        and kept["tree"] == applied.apply().record["tree"]["after"]
    )
    assert kept["runs"][0]["report"] == [
        {"feature": "graph", "verdict": "on", "reason": "captured", "offender": None}
    ]


def test_a_bench_of_another_model_has_a_file_of_its_own(applied, tmp_path):
    run = {"mode": "eager", "measure": "first-token", "verdict": "passed", "why": ""}
    first = take(applied, tmp_path, result(applied, load={}, subject="nemotron", runs=[run]))
    other = take(applied, tmp_path, result(applied, load={}, subject="deepseek-v32", runs=[run]))
    assert first.path.name.endswith(".bench.json") and other.path.name == first.path.name.replace(
        ".bench", ".deepseek-v32.bench"
    )
    assert other.kept == 0


def test_a_proof_with_another_attention_is_kept_beside(applied, tmp_path):
    """One of them is enough for a cell; its reason names the one that Hopper servers choose."""
    take(applied, tmp_path, result(applied))
    taken = take(applied, tmp_path, result(applied, attention="fa3"))
    assert taken.path.name == "nvidia-fake-1.fa3.json" and taken.kept == 0
    other, usual = store.proofs(applied.root, VERSION)
    assert [one.attention for one in (usual, other)] == ["flashinfer", "fa3"]
    assert matrix.place(other) == matrix.place(usual) + ", FlashAttention 3"
    assert other.title == usual.title + ", FlashAttention 3"


def test_a_bench_is_kept_beside(applied, tmp_path):
    assert take(applied, tmp_path, result(applied, load={})).path.name == "nvidia-fake-1.bench.json"


def test_a_gain_is_kept_beside_and_replaced_as_a_whole(applied, tmp_path):
    """Trees are compared within one run only; and a gain is no proof."""
    runs = [
        {"tree": tree, "mode": "eager", "measure": f"gain {tree}", "verdict": "passed", "why": ""}
        for tree in ("untouched", "patched")
    ]
    take(applied, tmp_path, result(applied, gain={}, runs=runs))
    taken = take(applied, tmp_path, result(applied, gain={}, runs=runs[1:]))
    assert taken.path.name == "nvidia-fake-1.gain.json" and (taken.runs, taken.kept) == (1, 0)
    assert store.proofs(applied.root, VERSION) == []


def test_a_graph_beside_eager_prefill_is_a_comparison_of_its_own(applied, tmp_path):
    """It replaces no gain of eager prefill on both trees, and none replaces it."""
    runs = [
        {"tree": tree, "mode": mode, "measure": f"gain {tree}", "verdict": "passed", "why": ""}
        for tree, mode in (("untouched", "eager"), ("patched", "breakable"))
    ]
    taken = take(applied, tmp_path, result(applied, gain={}, subject="qwen3-next", runs=runs))
    assert taken.path.name == "nvidia-fake-1.qwen3-next.breakable.gain.json"
    both = [run | {"mode": "breakable"} for run in runs]
    assert (
        take(applied, tmp_path, result(applied, gain={}, runs=both)).path.name
        == "nvidia-fake-1.gain.json"
    )


def test_piecewise_graphs_are_a_comparison_of_their_own_too(applied, tmp_path):
    def kept(before: str, after: str) -> str:
        runs = [
            {"tree": tree, "mode": mode, "measure": f"gain {tree}", "verdict": "passed", "why": ""}
            for tree, mode in (("untouched", before), ("patched", after))
        ]
        return take(applied, tmp_path, result(applied, gain={}, runs=runs)).path.name

    assert kept("piecewise", "piecewise") == "nvidia-fake-1.piecewise.gain.json"
    assert kept("eager", "piecewise") == "nvidia-fake-1.piecewise.gain.json"
    assert kept("piecewise", "breakable") == "nvidia-fake-1.breakable-beside-piecewise.gain.json"
    assert kept("breakable", "eager") == "nvidia-fake-1.gain.json"


def test_times_with_another_attention_are_a_comparison_of_their_own(applied, tmp_path):
    """They say what servers on Hopper gain; a proof with it is refused (below)."""
    runs = [
        {"tree": tree, "mode": mode, "measure": f"gain {tree}", "verdict": "passed", "why": ""}
        for tree, mode in (("untouched", "eager"), ("patched", "breakable"))
    ]
    taken = take(applied, tmp_path, result(applied, gain={}, runs=runs, attention="fa3"))
    assert taken.path.name == "nvidia-fake-1.fa3.breakable.gain.json"


def test_a_gain_of_several_modes_is_one_for_each(applied, tmp_path):
    """Calls of one tree in two modes would be mixed up."""
    ran = ("patched", "piecewise"), ("patched", "breakable"), ("untouched", "piecewise")
    runs = [
        {"tree": tree, "mode": mode, "measure": f"gain {i}", "verdict": "passed", "why": ""}
        for i, (tree, mode) in enumerate(ran)
    ]
    file = tmp_path / "gain.json"
    file.write_text(json.dumps(result(applied, gain={}, runs=runs)))
    found = store.take(applied.root, pins.load(applied.root), file)
    kept = [json.loads(taken.path.read_text())["runs"] for taken in found]
    assert [taken.path.name.split(".")[1] for taken in found] == [
        "piecewise",
        "breakable-beside-piecewise",
    ]
    for mode, entry in zip(("piecewise", "breakable"), kept, strict=True):
        assert {(run["tree"], run["mode"]) for run in entry} == {
            ("untouched", "piecewise"),
            ("patched", mode),
        }


def test_a_later_run_of_other_models_is_added_and_one_of_the_same_replaces(applied, tmp_path):
    take(applied, tmp_path, result(applied))
    other = {"model": "two", "mode": "eager", "verdict": "failed", "why": "no"}
    taken = take(applied, tmp_path, result(applied, runs=[other]))
    assert (taken.runs, taken.kept, taken.passed) == (1, 1, False)
    taken = take(applied, tmp_path, result(applied, runs=[other | {"verdict": "passed"}]))
    assert (taken.runs, taken.kept, taken.passed) == (1, 1, True)


def test_a_bench_of_loads_and_one_of_first_tokens_stay_side_by_side(applied, tmp_path):
    for measure, kept in (("load", 0), ("first-token", 1), ("load", 1)):
        one = {"mode": "eager", "measure": measure, "verdict": "passed", "why": ""}
        assert take(applied, tmp_path, result(applied, load={}, runs=[one])).kept == kept


def test_what_was_not_run_replaces_nothing(applied, tmp_path):
    late = {"model": "one", "mode": "eager", "verdict": "not run", "why": "no time was left"}
    assert not take(applied, tmp_path, result(applied, runs=[late])).passed
    take(applied, tmp_path, result(applied))
    taken = take(applied, tmp_path, result(applied, runs=[late, late | {"model": "two"}]))
    assert [
        (run["model"], run["verdict"]) for run in json.loads(taken.path.read_text())["runs"]
    ] == [("one", "passed"), ("two", "not run")]
    assert (taken.runs, taken.kept, taken.passed) == (1, 1, False)
    assert take(
        applied, tmp_path, result(applied, runs=[late | {"model": "two", "verdict": "passed"}])
    ).passed


def test_lifetimes_count_and_stay_until_they_are_checked_again(applied, tmp_path):
    failed = {"verdict": "failed", "why": "2 faults", "checks": []}
    assert not take(applied, tmp_path, result(applied, lifetimes=failed)).passed
    assert not take(applied, tmp_path, result(applied)).passed
    assert take(applied, tmp_path, result(applied, lifetimes=failed | {"verdict": "passed"})).passed
    taken = take(applied, tmp_path, result(applied))
    assert taken.passed and json.loads(taken.path.read_text())["lifetimes"]["verdict"] == "passed"
    taken = take(applied, tmp_path, result(applied, harness="another"))
    assert taken.passed and "lifetimes" not in json.loads(taken.path.read_text())


def test_runs_of_another_harness_and_of_modes_that_are_gone_do_not_stay(applied, tmp_path):
    gone = {"model": "one", "mode": "eager-again", "verdict": "failed", "why": "no"}
    assert not take(applied, tmp_path, result(applied, runs=[gone])).passed
    taken = take(applied, tmp_path, result(applied, harness="sha256:1"))
    assert (taken.kept, taken.passed) == (0, True)


@pytest.mark.parametrize("changed", [{"idle": "stopped"}, {"cpus": 16}])
def test_figures_taken_under_other_conditions_are_not_mixed(applied, tmp_path, changed):
    """What is said about a measurement's conditions is said about the whole file."""
    for measure, more in (("load", {}), ("first-token", changed)):
        taken = take(
            applied,
            tmp_path,
            result(
                applied,
                load={},
                runs=[{"mode": "eager", "measure": measure, "verdict": "passed", "why": ""}],
                **more,
            ),
        )
    assert taken.kept == 0


def test_runs_on_another_torch_are_not_mixed(applied, tmp_path):
    take(applied, tmp_path, result(applied))
    taken = take(
        applied,
        tmp_path,
        result(
            applied,
            torch={"version": "2.9.1", "pinned": "2.9.1", "off_pin": False},
            runs=[{"model": "two", "mode": "eager", "verdict": "passed"}],
        ),
    )
    assert taken.kept == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tree_untouched": False}, "touched-tree"),
        ({"changes": "sha256:" + "0" * 64}, "stale-evidence"),
        ({"tree": "sha256:" + "0" * 64}, "tree-mismatch"),
        ({"schema": 2}, "Invalid enum value 2 - at `..schema"),
        ({"version": "9.9.2"}, "is not pinned"),
        ({"attention": "triton"}, "Invalid enum value 'triton' - at `..attention"),
    ],
)
def test_a_result_about_anything_else_is_refused(applied, tmp_path, changes, named):
    with pytest.raises(Refused, match=named):
        take(applied, tmp_path, result(applied, **changes))
    assert not (applied.root / "evidence").exists()


def test_a_stale_result_is_kept_where_it_is_asked_for_and_says_so(applied, tmp_path):
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps(result(applied, changes="sha256:" + "0" * 64)))
    [taken] = store.take(applied.root, pins.load(applied.root), file, stale=True)
    assert taken.path.is_file()  # the matrix and the bench's page tell it from today's queue


def edit(project, part: str) -> None:
    """Change a patch's header, or what it adds."""
    file = next((project.root / "patches").rglob("*.patch"))
    head, mark, hunks = file.read_text().partition("\n@@")
    head, hunks = (
        (head.replace("Description: ", "Description: Said better. ", 1), hunks)
        if part == "header"
        else (head, hunks.replace("\n+", "\n+ ", 1))
    )
    file.write_text(head + mark + hunks)


def test_a_patchs_header_can_change_behind_a_run(applied, tmp_path):
    """One that is submitted upstream says so there: what was measured stays true."""
    found = result(applied)
    edit(applied, "header")
    assert take(applied, tmp_path, found).passed


def test_a_patchs_hunks_cannot_change_behind_a_run(applied, tmp_path):
    found = result(applied)
    edit(applied, "hunk")
    with pytest.raises(Refused, match="stale-evidence"):
        take(applied, tmp_path, found)


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "is no JSON"), ("[]", "got `array`"), ('{"schema": 1}', "field `version`")],
)
def test_an_unreadable_result_is_named(applied, tmp_path, text, named):
    file = tmp_path / "evidence.json"
    file.write_text(text)
    with pytest.raises(Refused, match=named):
        store.read(file)


def test_a_result_may_hold_what_is_no_number(applied, tmp_path):
    """Answers that are none are what a failed run is about."""
    check = {"good": False, "what": "logits", "numbers": {"worst": float("nan")}}
    run = {"model": "one", "mode": "piecewise", "verdict": "failed", "checks": [check]}
    assert not take(applied, tmp_path, result(applied, runs=[run])).passed


@pytest.fixture(scope="module")
def queue():
    return series.read(ROOT)[0]


PINS = pins.load(ROOT)
CELLS = cells.load(ROOT)
NEMOTRON = CELLS.features[0]
BREAKABLE = next(feature for feature in CELLS.features if feature.mode == "breakable")
RULES = harness.identity(ROOT)


def judge(found: dict, queue, feature: cells.Feature) -> matrix.Cell | None:
    """What a file says of a feature on 0.5.9."""
    return matrix.judge(fakes.recorded(found, Record), queue, PINS.find("v0.5.9"), feature, RULES)


def found(of, tag="v0.5.9", verdict="passed", **changes) -> dict:
    pin = PINS.find(tag)
    runs = [
        {"model": model, "mode": "piecewise", "verdict": verdict, "why": "the reason"}
        for model in NEMOTRON.models
    ]
    return {
        "version": str(pin.version),
        "changes": Selection(of, pin).effect_sha256,
        "date": "2030-01-02",
        "gpu": {"name": "NVIDIA Fake"},
        "torch": {"version": "2.11.0+cu130", "pinned": "2.9.1", "off_pin": True},
        "kernel": None,
        "harness": RULES,
        "runs": runs,
    } | changes


@pytest.mark.parametrize(
    ("changes", "state", "told"),
    [
        ({}, matrix.State.PROVEN, "on NVIDIA Fake with torch 2.11.0, off the release's pin 2.9.1"),
        ({"harness": "sha256:0"}, matrix.State.PROVEN, "pin 2.9.1, by an earlier harness"),
        ({"harness": None}, matrix.State.PROVEN, "pin 2.9.1, by an earlier harness"),
        ({"verdict": "failed"}, matrix.State.FAILED, "the reason"),
        ({"verdict": "not applicable"}, matrix.State.NOT_APPLICABLE, "the reason"),
        (
            {"changes": "sha256:0"},
            matrix.State.STALE,
            "the queue has changed since the run of 2030-01-02, which said proven: ",
        ),
        (
            {"changes": "sha256:0", "verdict": "failed"},
            matrix.State.STALE,
            "which said failed: on NVIDIA Fake",
        ),
        (
            {"changes": "sha256:0", "verdict": "not applicable"},
            matrix.State.STALE,
            "which said not applicable: the reason",
        ),
    ],
)
def test_what_evidence_shows(queue, changes, state, told):
    judged = judge(found(queue, **changes), queue, NEMOTRON)
    assert judged.state is state and told in judged.reason


@pytest.mark.parametrize(
    ("lifetimes", "state", "told"),
    [
        ({}, matrix.State.PROVEN, "off the release's pin 2.9.1; lifetimes not checked in this run"),
        (
            {"lifetimes": {"verdict": "passed", "why": ""}},
            matrix.State.PROVEN,
            "off the release's pin 2.9.1",
        ),
        (
            {"lifetimes": {"verdict": "failed", "why": "2 faults"}},
            matrix.State.FAILED,
            "lifetimes: failed: 2 faults",
        ),
        (
            {"lifetimes": {"verdict": "not applicable", "why": "none"}},
            matrix.State.FAILED,
            "lifetimes: not applicable: none",
        ),
    ],
)
def test_a_breakable_graph_is_proven_where_its_lifetimes_are(queue, lifetimes, state, told):
    one = found(queue, **lifetimes)
    one["runs"] = [
        {"model": model, "mode": "breakable", "verdict": "passed", "why": ""}
        for model in BREAKABLE.models
    ]
    judged = judge(one, queue, BREAKABLE)
    assert judged.state is state and judged.reason.endswith(told)


def test_what_has_no_reference_is_untold_and_not_stale(queue, monkeypatch):
    """Qwen3-Next ran with today's queue. Its cells told of a fault that an older run had found."""
    no_reference = {"verdict": "not run", "why": "its reference failed: 2 of 4 prompts moved"}
    today, earlier = found(queue), found(queue, verdict="failed", changes="sha256:0")
    today["runs"][0] |= no_reference
    records = [fakes.recorded(one, Record) for one in (earlier, today)]
    monkeypatch.setattr(matrix, "proofs", lambda root, version: records)
    told = matrix.cell(ROOT, queue, PINS.find("v0.5.9"), NEMOTRON)
    assert told.state is matrix.State.UNTOLD
    assert f"the reference of {NEMOTRON.models[0]} failed" in told.reason
    old = judge(today | {"changes": "sha256:0"}, queue, NEMOTRON)
    assert old.state is matrix.State.STALE and "which said untold: on NVIDIA Fake" in old.reason
    # of a run that found no time, nothing is known
    today["runs"][0]["why"] = "its reference did not run"
    assert judge(today, queue, NEMOTRON) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_stale_cell_tells_of_the_latest_run(queue, monkeypatch, turned):
    """0.5.18 was proven on an H200, and its cells told of a fault that an H100's run had found the
    day before."""
    before = found(queue, verdict="failed", changes="sha256:0", date="2026-11-25")
    after = found(queue, changes="sha256:1", date="2026-11-26")
    records = [fakes.recorded(one, Record) for one in (before, after)]
    monkeypatch.setattr(
        matrix, "proofs", lambda root, version: records[::-1] if turned else records
    )
    told = matrix.cell(ROOT, queue, PINS.find("v0.5.9"), NEMOTRON)
    assert told.state is matrix.State.STALE
    assert "since the run of 2026-11-26, which said proven" in told.reason


def test_what_no_release_of_today_can_do_is_not_stale(queue, monkeypatch):
    """0.5.21's set-up refuses NemotronH that graph, whatever the queue of a run was."""
    pin = PINS.find("v0.5.21")
    earlier = found(queue, "v0.5.21", "not applicable", changes="sha256:0")
    record = fakes.recorded(earlier, Record)
    monkeypatch.setattr(matrix, "proofs", lambda root, version: [record])
    told = matrix.cell(ROOT, queue, pin, NEMOTRON)
    assert told.state is matrix.State.NOT_APPLICABLE and "attention in every layer" in told.reason


def test_evidence_about_one_of_two_models_shows_nothing(queue):
    half = found(queue)
    half["runs"].pop()
    assert judge(half, queue, NEMOTRON) is None


def test_a_model_that_a_release_does_not_know_keeps_no_cell_from_being_proven(queue):
    """0.5.5's NemotronH has no experts. A run that tried them anyway is not counted."""
    pin = PINS.find("v0.5.5.post3")
    dense, experts = NEMOTRON.models
    assert (dense, experts) == ("nemotron-h", "nemotron-h-moe")
    for verdict in ("not tried", "not run", "failed"):
        one = found(queue, pin.tag)
        one["runs"] = [
            run | {"verdict": verdict} if run["model"] == experts else run
            for run in one["runs"]
            if run["model"] == dense or verdict != "not tried"
        ]
        told = matrix.judge(fakes.recorded(one, Record), queue, pin, NEMOTRON, RULES)
        assert told.state is matrix.State.PROVEN
        assert told.reason.endswith(f"; the release does not know {experts}")
    one["runs"] = [run for run in one["runs"] if run["model"] == experts]
    assert matrix.judge(fakes.recorded(one, Record), queue, pin, NEMOTRON, RULES) is None


@pytest.mark.parametrize(
    ("tag", "state"),
    [
        ("v0.5.9", matrix.State.NOT_RUN),
        ("v0.5.11", matrix.State.NOT_RUN),
        ("v0.5.23", matrix.State.NOT_APPLICABLE),
    ],
)
def test_what_the_queue_alone_shows(queue, tag, state):
    assert matrix.expected(queue, PINS.find(tag), NEMOTRON).state is state


def test_the_page_has_the_matrix_of_today():
    text = (ROOT / status.PAGE).read_text(encoding="utf-8")
    assert status.in_page(text, status.tables(ROOT, PINS)) == text, "`scripts/nox status` writes it"


def test_the_page_of_patches_has_those_of_each_release(queue):
    text = (ROOT / status.PATCHES).read_text(encoding="utf-8")
    made = status.by_release(queue, PINS)
    assert status.PATCHES_BEGIN + made + status.PATCHES_END in text, (
        "`scripts/nox status` writes it"
    )
    row = next(line for line in made.splitlines() if line.startswith("| 0.5.23 |"))
    assert (
        f"| {len(queue.select(PINS.find('v0.5.23').version))} |" in row
        and "keep-break-tensors" in row
        and "scan-in-place" not in row
    )


def test_a_family_can_be_kept_from_a_graph_that_others_have(queue):
    """NemotronH from the piecewise one, from 0.5.19 on; its breakable one is as the graph says."""
    kept = matrix.expected(queue, PINS.find("v0.5.20"), NEMOTRON)
    assert kept.state is matrix.State.NOT_APPLICABLE and "attention in every layer" in kept.reason
    for feature in (BREAKABLE, next(one for one in CELLS.features if "llama" in one.models)):
        assert matrix.expected(queue, PINS.find("v0.5.20"), feature).state is matrix.State.NOT_RUN


@pytest.mark.parametrize(
    "feature", CELLS.features, ids=lambda feature: f"{feature.models[0]}-{feature.mode}"
)
def test_every_patch_that_a_feature_names_is_in_the_queue(queue, feature):
    assert set(feature.brings + feature.repairs) <= {entry.base for entry in queue.entries}


def test_any_of_a_features_patches_leaves_it_to_be_proven(queue):
    brings, repairs = (
        ("piecewise/zero-padded-embeds.patch",),
        ("breakable/pass-embeds-by-name.patch", "piecewise/restore-flag-on-error.patch"),
    )
    feature = cells.Feature(
        ("one",), "breakable", brings, repairs, {"<0.5.8": "no such graph"}, "0.5.11"
    )
    shown = {
        tag: matrix.expected(queue, PINS.find(tag), feature)
        for tag in ("v0.5.7", "v0.5.8.post1", "v0.5.9", "v0.5.11", "v0.5.13.post1")
    }
    assert [cell.state.name for cell in shown.values()] == [
        "NOT_APPLICABLE",
        "NOT_APPLICABLE",
        "NOT_RUN",
        "UPSTREAM",
        "NOT_RUN",
    ]
    assert shown["v0.5.7"].reason == "no such graph" and shown["v0.5.9"].reason.startswith(
        "the queue brings it"
    )
    assert (
        shown["v0.5.13.post1"].reason == "the queue repairs it with `breakable/pass-embeds-by-name`"
    )


TOPICS = {
    "piecewise": ("piecewise",),
    "piecewise-inductor": ("piecewise", "compile"),
    "breakable": ("breakable", "piecewise"),
}
TOPICS_OF = {
    NEMOTRON.models: ("nemotron-h", "mamba2", "moe"),
    ("qwen3-next",): ("qwen3-next", "gdn", "moe"),
    ("falcon-h1",): ("mamba2",),
    ("llama",): (),
    ("deepseek-v32", "deepseek-v32-fp8", "glm-5"): ("nsa", "moe"),
}
FASTER = "makes prefill faster and repairs nothing"
APART = {
    "breakable/find-layer-stack": "models whose stack the release does not find",
    "breakable/refuse-uncovered-mamba2": "Falcon-H1 alone",
    "moe/copy-input-of-piecewise-op": "inductor alone",
    **dict.fromkeys(
        [
            "mamba2/fix-tiles",
            "mamba2/scan-in-place",
            "mamba2/track-mask-once",
            "mamba2/norm-groups-in-one-kernel",
        ],
        FASTER,
    ),
    **dict.fromkeys(
        ["nemotron-h/square-relu-in-one-kernel", "gdn/convolve-strided-input", "gdn/fix-tiles"],
        FASTER,
    ),
    "gdn/split-projections-in-one-kernel": (
        "models with as many key heads as value heads; it makes Qwen3-Next faster"
    ),
}


@pytest.mark.parametrize(
    "feature", CELLS.features, ids=lambda feature: f"{feature.models[0]}-{feature.mode}"
)
def test_upstream_is_said_only_where_no_patch_repairs_it(queue, feature):
    """A patch of the graph's topic or the model's, selected for a release, keeps "upstream" away,
    but for those set apart."""
    topics = (*TOPICS[feature.mode], *TOPICS_OF[feature.models])
    for pin in PINS.all:
        if matrix.expected(queue, pin, feature).state is matrix.State.UPSTREAM:
            selected = {
                queue.base(patch.name).removesuffix(".patch") for patch in queue.select(pin.version)
            }
            assert [
                name for name in selected - APART.keys() if name.split("/")[0] in topics
            ] == [], pin.tag


def test_a_breakable_graph_whose_breaks_are_repaired_is_never_the_releases_own(queue):
    for tag in ("v0.5.14", "v0.5.18", "v0.5.20", "v0.5.23"):
        for feature in (one for one in CELLS.features if one.mode == "breakable"):
            assert matrix.expected(queue, PINS.find(tag), feature).reason.startswith(
                "the queue repairs it"
            )


@pytest.mark.parametrize("pin", PINS.all, ids=lambda pin: pin.tag)
def test_a_cell_without_a_run_names_every_patch_that_it_rests_on(queue, pin):
    selected = {queue.base(patch.name) for patch in queue.select(pin.version)}
    for feature in CELLS.features:
        cell = matrix.expected(queue, pin, feature)
        if cell.state is matrix.State.NOT_RUN:
            since = Version(feature.upstream or "1000")
            brings = selected & set(feature.brings) if pin.version < since else set()
            named = {f"{name}.patch" for name in re.findall(r"`([a-z0-9./-]+)`", cell.reason)}
            assert named == (brings or selected & set(feature.repairs)) and named


def test_the_tables_are_readable_as_plain_text():
    rows = [line for line in status.tables(ROOT, PINS).splitlines() if line.startswith("|")]
    tables = len(CELLS.tables) + 1  # and one of what scripts ask beside the matrix
    assert len(rows) == tables * (2 + len(PINS.all)) and max(map(len, rows)) <= 110


def test_compilers_that_stand_alike_share_a_word():
    row = [matrix.Cell(matrix.State.PROVEN, "here")] * (len(CELLS.features) - 4) + [
        matrix.Cell(matrix.State.STALE, "old")
    ] * 4
    row[1] = matrix.Cell(matrix.State.FAILED, "why")
    text = status.markdown(CELLS, [(PINS.find("v0.5.9"), row)])
    assert (
        "| 0.5.9 | proven (1) / failed (2) | proven (1) | proven (1) |" in text
        and "| 0.5.9 | stale (3) | stale (3) | stale (3) | stale (3) |" in text
    )


def test_a_failure_is_told_in_words():
    assert (
        matrix.in_words(
            "agrees with eager prefill, cold: 1 prompts answered otherwise, first a[8]: token 2"
            " is 3"
        )
        == "answers otherwise than eager prefill"
    )
    assert matrix.in_words("graphs ran: 2 of 7") == 'does not pass "graphs ran"'
    assert matrix.in_words("exit code -9: AssertionError: n=copy_") == "ended with exit code -9"
    reasons = [cell.reason for _, cells in matrix.matrix(ROOT, PINS) for cell in cells]
    assert any(
        f"answers otherwise than eager prefill ([details]({matrix.DETAILS}))" in reason
        for reason in reasons
    )
    assert not [reason for reason in reasons if "allowed is" in reason or "limits:" in reason]


def test_every_state_has_a_reason():
    assert all(cell.reason for _, cells in matrix.matrix(ROOT, PINS) for cell in cells)


def test_a_page_without_markers_is_refused():
    with pytest.raises(Refused, match="no-markers"):
        status.in_page("# title\n", "matrix")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[graphs", "is not TOML: "),
        ("[graphs.one]\nrepair = []", "Object contains unknown field `repair` - at `$.graphs"),
        ('[[tables]]\ntitle = "a"\ngraphs = ["two"]\nfamilies = {}', "has no [graphs.two]"),
        (
            '[graphs.one]\nbrings = ["a/b.patch"]\n[[tables]]\ntitle = "a"\ngraphs = ["one"]\n'
            'families.llama.models = ["llama"]',
            "names a/b.patch, and patches/ has no such file",
        ),
        (
            '[graphs.one]\n[[tables]]\ntitle = "a"\ngraphs = ["one"]\n'
            'families.llama = { models = ["llama"], since = { lama = "0.5.6" } }',
            "has a family without lama, and says since when it is known",
        ),
    ],
)
def test_cells_that_cannot_be_read_are_refused(tmp_path, text, said):
    store.put(tmp_path / cells.FILE, text)
    with pytest.raises(Refused, match="evidence/matrix.toml: .*bad-matrix") as refused:
        cells.load(tmp_path)
    assert said in str(refused.value)
