"""A fleet's results come together: each checked as one is, the weightier run kept, nothing proven
that was not."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import get_args

import fakes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_evidence import BREAKABLE, NEMOTRON, PINS, ROOT, RULES, edit, judge, result

from evidence import cells, matrix, merge, store
from evidence.commands.cli import main
from evidence.merge import Fate, fold
from evidence.pages import status
from evidence.records import Record, Verdict
from patchqueue.laying.selection import Selection
from patchqueue.outcome import Refused
from patchqueue.queue import series
from patchqueue.upstream import pins

NOW, EARLIER = "sha256:now", "sha256:earlier"


def run(model: str, mode: str = "piecewise", verdict: str = "passed", why: str = "") -> dict:
    return {"model": model, "mode": mode, "verdict": verdict, "why": why, "seconds": 40}


def ran(model: str, *modes: str, verdict: str = "passed") -> list[dict]:
    """A model's runs as one host makes them: the reference, and the modes that were held against
    it."""
    return [
        run(model, "reference"),
        *(run(model, mode, verdict) for mode in modes or ("piecewise",)),
    ]


@pytest.fixture
def fleet(applied, tmp_path):
    """The project with the real harness's identity, and a way to lay down results and to merge
    them."""

    rules = fakes.harness(applied)

    class Fleet:
        root, results = applied.root, tmp_path / "results"
        kept = applied.root / "evidence/9.9.1/nvidia-fake-1.json"
        of_today = result(applied, harness=rules)

        def lay(self, name: str, runs: list[dict], **changes) -> Path:
            file = self.results / name / "evidence.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(self.of_today | {"runs": runs} | changes))
            return file

        def merge(self) -> list[merge.Gathered]:
            return merge.merge(self.root, pins.load(self.root), self.results)

        def verdicts(self, file: Path | None = None) -> dict[tuple[str, str], str]:
            return {
                (one["model"], one["mode"]): one["verdict"]
                for one in json.loads((file or self.kept).read_text())["runs"]
            }

    return Fleet()


def gpu(driver: str = "580", name: str = "NVIDIA Fake 1") -> dict:
    return {"name": name, "driver": driver}


def test_models_from_several_hosts_come_into_one_file(fleet):
    """Hosts with another driver too, which --take would not mix: each run says its own."""
    fleet.lay("a", ran("one"), gpu=gpu("580"))
    fleet.lay("deep/down/b", ran("two"), gpu=gpu("590"), date="2030-01-03")
    assert [(one.fate, one.kept) for one in fleet.merge()] == [(Fate.TAKEN, fleet.kept)] * 2
    kept = json.loads(fleet.kept.read_text())
    drivers = {one["model"]: store.facts(kept, one)["gpu"]["driver"] for one in kept["runs"]}
    assert (
        drivers == {"one": "580", "two": "590"}
        and kept["gpu"]["driver"] == "590"
        and kept["passed"]
    )
    assert {one["model"] for one in kept["runs"] if "host" in one} == {"one"}


@pytest.mark.parametrize(
    "odd",
    [
        {"gpu": {"name": 5}},
        {"lifetimes": 3},
        {"seconds": "x"},
        {"runs": [{"model": "one", "mode": 3, "verdict": "passed"}]},
        {"runs": [{"model": "one", "mode": "reference", "verdict": "passed", "seconds": "x"}]},
    ],
)
def test_a_result_of_another_form_keeps_no_other_out(fleet, odd):
    fleet.lay("a", ran("one"), **odd) if "runs" not in odd else fleet.lay("a", odd["runs"])
    fleet.lay("b", ran("two"))
    assert [one.fate for one in fleet.merge()] == [Fate.REFUSED, Fate.TAKEN]


def test_what_evidence_keeps_can_be_gathered_again(fleet):
    """A copy of a file below evidence/: its reports are short already."""
    fleet.lay(
        "a",
        [
            one
            | {
                "report": {
                    "servers": [{"model": "/models/one", "feature": "a graph", "verdict": "on"}]
                }
            }
            for one in ran("one")
        ],
    )
    fleet.merge()
    kept = fleet.kept.read_bytes()
    (fleet.results / "a/evidence.json").write_bytes(kept)
    assert [one.fate for one in fleet.merge()] == [Fate.THERE] and fleet.kept.read_bytes() == kept


def test_gpus_of_another_kind_stay_apart(fleet):
    fleet.lay("a", ran("one"))
    fleet.lay("b", ran("one", verdict="failed"), gpu=gpu(name="NVIDIA Fake 2"))
    fleet.merge()
    assert fleet.verdicts()["one", "piecewise"] == "passed"
    assert (
        fleet.verdicts(fleet.kept.with_name("nvidia-fake-2.json"))["one", "piecewise"] == "failed"
    )


def test_a_second_time_nothing_changes(fleet):
    for name in ("one", "two"):
        fleet.lay(name, ran(name), gpu=gpu(name))
    fleet.merge()
    before = fleet.kept.read_bytes()
    assert {one.fate for one in fleet.merge()} == {Fate.THERE} and fleet.kept.read_bytes() == before


def test_what_take_would_refuse_is_refused_and_keeps_no_other_out(fleet):
    fleet.lay("good", ran("one"))
    bad = {
        "touched": {"tree_untouched": False},
        "stale": {"changes": "sha256:" + "0" * 64},
        "tree": {"tree": "sha256:" + "0" * 64},
        "schema": {"schema": 2},
        "unpinned": {"version": "9.9.2"},
        "bench": {"load": {}},
        "alone": {"runs": [run("one")]},
        "not-a-run": {"runs": [3]},
        "verdict": {"runs": [run("one", verdict="perfect")]},
        "no-gpu": {"gpu": {"name": "/"}},
        "day": {"date": "someday"},
        "twice": {"runs": [run("one", "reference") | {"host": {}}]},
    }
    for name, changes in bad.items():
        fleet.lay(name, **{"runs": ran("one")} | changes)
    (fleet.results / "broken").mkdir()
    (fleet.results / "broken/evidence.json").write_text("{")
    found = {one.file.parent.name: one for one in fleet.merge()}
    assert found["good"].fate is Fate.TAKEN
    assert {name for name, one in found.items() if one.fate is Fate.REFUSED} == {*bad, "broken"}
    told = {
        "touched": "touched-tree",
        "stale": "stale-evidence",
        "tree": "tree-mismatch",
        "bench": "a bench's result",
        "alone": "no run that it was held against",
        "verdict": "'perfect'",
    }
    assert all(what in found[name].why for name, what in told.items())


def test_an_edited_queue_refuses_all_that_was_run_before(fleet, applied):
    fleet.lay("a", ran("one"))
    edit(applied, "hunk")
    assert [one.fate for one in fleet.merge()] == [Fate.REFUSED] and not fleet.kept.exists()


def test_a_folder_without_results_is_said(fleet, tmp_path):
    with pytest.raises(Refused, match="holds no evidence.json"):
        merge.merge(fleet.root, pins.load(fleet.root), tmp_path / "nowhere")


def test_what_passed_against_a_reference_that_failed_is_not_proven(fleet):
    fleet.lay("a", [run("one", "reference", "failed", "every answer was token 0"), run("one")])
    fleet.merge()
    kept = {(one["model"], one["mode"]): one for one in json.loads(fleet.kept.read_text())["runs"]}
    assert (
        kept["one", "piecewise"]["verdict"] == "not run"
        and "token 0" in kept["one", "piecewise"]["why"]
    )


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        ("reference", {"piecewise": "not run", "breakable": "passed"}),
        ("reference-breakable", {"piecewise": "passed", "breakable": "not run"}),
    ],
)
def test_a_run_is_lost_with_its_own_reference_alone(fleet, broken, kept):
    """From 0.5.14 on a release has two; the breakable graph is held against the second."""
    names = ("reference", "reference-breakable")
    references = [run("one", name, "failed" if name == broken else "passed") for name in names]
    fleet.lay("a", [*references, run("one"), run("one", "breakable")])
    fleet.merge()
    found = {one["mode"]: one["verdict"] for one in json.loads(fleet.kept.read_text())["runs"]}
    assert kept.items() <= found.items()


def test_better_evidence_is_not_lost(fleet):
    """Nothing of what is kept goes for a run that had no time, was another day before, or was by an
    earlier harness."""
    fleet.lay("kept", [*ran("one"), *ran("two")], date="2030-01-05")
    fleet.merge()
    fleet.lay("kept", ran("three"))
    fleet.lay(
        "late",
        [run("one", "reference", "not run"), run("one", verdict="not run")],
        date="2030-01-09",
    )
    fleet.lay("older", ran("two", verdict="failed"), date="2030-01-04")
    fleet.lay(
        "earlier-harness", ran("two", verdict="failed"), harness="sha256:before", date="2030-01-09"
    )
    found = {one.file.parent.name: one.fate for one in fleet.merge()}
    assert found == {
        "kept": Fate.TAKEN,
        "late": Fate.SUPERSEDED,
        "older": Fate.SUPERSEDED,
        "earlier-harness": Fate.SUPERSEDED,
    }
    assert set(fleet.verdicts().values()) == {"passed"} and len(fleet.verdicts()) == 6


def grow_stale(file: Path) -> None:
    """As if the queue had changed since; on the release's own torch, and late."""
    torch = {"version": "2.9.1", "pinned": "2.9.1", "off_pin": False}
    file.write_text(
        json.dumps(
            json.loads(file.read_text())
            | {"changes": "sha256:earlier", "date": "2031-01-01", "torch": torch}
        )
    )


def test_what_is_about_todays_queue_outweighs_what_is_not_and_leaves_the_rest(fleet):
    """So a model that was not run again still reads stale, and not as if nobody had ever run it."""
    fleet.lay("a", [*ran("one"), *ran("two")])
    fleet.merge()
    grow_stale(fleet.kept)
    fleet.lay("a", ran("one", verdict="failed"))
    fleet.merge()
    kept = json.loads(fleet.kept.read_text())
    changes = {one["model"]: store.facts(kept, one)["changes"] for one in kept["runs"]}
    assert (
        changes == {"one": fleet.of_today["changes"], "two": "sha256:earlier"}
        and fleet.verdicts()["one", "piecewise"] == "failed"
    )


def test_what_todays_queue_could_not_tell_outweighs_what_an_earlier_one_told(fleet):
    """Qwen3-Next on 0.5.18: an earlier queue failed in a way that today's does not, and its cell
    went on to speak of the earlier one."""
    fleet.lay("a", ran("one", verdict="failed"))
    fleet.merge()
    grow_stale(fleet.kept)
    fleet.lay("a", [run("one", "reference", "failed", "two answers"), run("one")])
    fleet.merge()
    assert fleet.verdicts()["one", "piecewise"] == "not run"
    kept = json.loads(fleet.kept.read_text())
    assert {store.facts(kept, one)["changes"] for one in kept["runs"]} == {
        fleet.of_today["changes"]
    }


@pytest.mark.parametrize(
    "under",
    [
        {},
        {"harness": "sha256:before"},
        {"torch": {"version": "2.11.0", "pinned": "2.9.1", "off_pin": True}},
    ],
)
def test_what_was_told_stays_where_a_later_run_had_no_reference(fleet, under):
    """Whatever the one that told was made under, if only about today's tree."""
    fleet.lay("a", ran("one", verdict="failed"), **under)
    fleet.merge()
    later = [run("one", "reference", "failed", "two answers"), run("one")]
    on_pin = {"version": "2.9.1", "pinned": "2.9.1", "off_pin": False}
    fleet.lay("a", later, date="2030-01-09", torch=on_pin)
    fleet.merge()
    assert fleet.verdicts()["one", "piecewise"] == "failed"


def test_a_result_that_is_taken_later_keeps_only_what_is_alike(fleet):
    """--take goes by what each run was made under, not by what the file says."""
    fleet.lay("a", ran("one"), gpu=gpu("580"))
    fleet.lay("b", ran("two"), gpu=gpu("590"), date="2030-01-03")
    fleet.merge()
    later = fleet.lay("c", ran("three"), gpu=gpu("590"), date="2030-01-04")
    [taken] = store.take(fleet.root, pins.load(fleet.root), later)
    kept = json.loads(fleet.kept.read_text())
    assert taken.kept == 2 and {
        one["model"]: store.facts(kept, one)["date"] for one in kept["runs"]
    } == {"two": "2030-01-03", "three": "2030-01-04"}


def test_a_failure_is_not_asked_away_on_the_same_day(fleet):
    """Of equals the one that failed stays, whichever came first; a later day may find it
    repaired."""
    for first, second in (("passed", "failed"), ("failed", "passed")):
        fleet.kept.unlink(missing_ok=True)
        for verdict in (first, second):
            fleet.lay("a", ran("one", verdict=verdict))
            fleet.merge()
        assert fleet.verdicts()["one", "piecewise"] == "failed"
    fleet.lay("a", ran("one"), date="2030-01-03")
    fleet.merge()
    assert fleet.verdicts()["one", "piecewise"] == "passed"


def test_a_run_on_the_releases_own_torch_outweighs_one_off_it(fleet):
    fleet.lay(
        "on",
        ran("one", verdict="failed"),
        torch={"version": "2.9.1", "pinned": "2.9.1", "off_pin": False},
    )
    fleet.lay("off", ran("one"), date="2030-01-09")
    fleet.merge()
    assert fleet.verdicts()["one", "piecewise"] == "failed"


def test_lifetimes_stay_with_the_runs_of_their_host(fleet):
    fleet.lay(
        "a",
        ran("one", "breakable"),
        lifetimes={"verdict": "failed", "why": "2 faults", "checks": []},
        gpu=gpu("580"),
    )
    fleet.lay(
        "b",
        ran("two", "breakable"),
        lifetimes={"verdict": "passed", "why": "", "checks": []},
        gpu=gpu("590"),
    )
    fleet.lay("c", ran("three", "breakable"), gpu=gpu("600"))
    fleet.merge()
    kept = json.loads(fleet.kept.read_text())
    lifetimes = {
        one["model"]: store.facts(kept, one)["lifetimes"]
        for one in kept["runs"]
        if one["mode"] == "breakable"
    }
    assert (
        lifetimes["one"]["verdict"] == "failed"
        and lifetimes["two"]["verdict"] == "passed"
        and lifetimes["three"] is None
        and not kept["passed"]
    )


def test_lifetimes_of_a_host_none_of_whose_breakable_runs_stays_do_not_count(fleet):
    failed = {"verdict": "failed", "why": "2 faults", "checks": []}
    fleet.lay(
        "a", [*ran("one"), run("one", "breakable", "not run")], lifetimes=failed, date="2030-01-09"
    )
    fleet.lay("b", ran("one", "breakable"), lifetimes=failed | {"verdict": "passed"})
    fleet.merge()
    kept = json.loads(fleet.kept.read_text())
    assert kept["date"] == "2030-01-09" and "lifetimes" not in kept and kept["passed"]


def test_a_merge_that_is_killed_leaves_whole_files(fleet, monkeypatch):
    """The first file is put in place, the second is not: each is old or new, and the next merge
    ends it."""
    fleet.lay("a", ran("one"))
    fleet.lay("b", ran("one"), gpu=gpu(name="NVIDIA Fake 2"))
    replaced = []

    def once(source, target):
        if replaced:
            raise KeyboardInterrupt
        replaced.append(target)
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        fleet.merge()
    monkeypatch.undo()
    assert [
        json.loads(file.read_text())["passed"] for file in fleet.kept.parent.glob("*.json")
    ] == [True]
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(fleet.root.parent / "cache"))
    assert sorted(one.fate for one in fleet.merge()) == [Fate.THERE, Fate.TAKEN]
    assert len(list(fleet.kept.parent.glob("*.json"))) == 2


# the order that runs are weighed by, on results of every kind


def made(draw) -> dict:
    off = draw(st.booleans())
    facts = {
        "schema": 1,
        "changes": draw(st.sampled_from([NOW, EARLIER])),
        "harness": draw(st.sampled_from([RULES, "older"])),
        "date": draw(st.sampled_from(["2030-01-01", "2030-01-02"])),
        "gpu": gpu(draw(st.sampled_from(["580", "590"]))),
        "torch": {"version": "2.11.0" if off else "2.9.1", "pinned": "2.9.1", "off_pin": off},
    }
    if draw(st.booleans()):
        facts["lifetimes"] = {"verdict": draw(st.sampled_from(["passed", "failed"])), "why": ""}
    kinds = st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from(["piecewise", "breakable"]),
        st.sampled_from(get_args(Verdict)),
    )
    chosen = draw(st.lists(kinds, min_size=1, max_size=4, unique_by=lambda kind: kind[:2]))
    return facts | {"runs": [run(*kind) for kind in chosen]}


def resolved(whole: dict) -> list[str]:
    """Every run with all that it was made under: what a file says, however it says it."""
    return sorted(
        json.dumps(
            [
                {name: value for name, value in one.items() if name != "host"},
                store.facts(whole, one),
            ],
            sort_keys=True,
        )
        for one in whole["runs"]
    )


@settings(max_examples=300)
@given(st.data())
def test_neither_order_nor_parts_nor_repeats_matter(data):
    results = [
        (Path(str(number)), made(data.draw)) for number in range(data.draw(st.integers(2, 5)))
    ]
    at_once, _ = fold(None, results, NOW, RULES)
    shuffled = results * 2
    random.Random(data.draw(st.integers(0, 99))).shuffle(shuffled)
    whole = None
    for one in shuffled:
        whole, _ = fold(whole, [copy.deepcopy(one)], NOW, RULES)
    assert resolved(whole) == resolved(at_once) and whole["passed"] == at_once["passed"]


@given(st.data())
def test_every_run_that_is_kept_was_sent_as_it_is(data):
    """No run gets another host's facts, and a model and mode that somebody ran is never lost."""
    results = [
        (Path(str(number)), made(data.draw)) for number in range(data.draw(st.integers(1, 5)))
    ]
    whole, _ = fold(None, results, NOW, RULES)
    sent = [text for _, found in results for text in resolved(found)]
    assert set(resolved(whole)) <= set(sent)
    ran_once = {
        (one["model"], one["mode"])
        for _, found in results
        for one in found["runs"]
        if one["verdict"] != "not run"
    }
    assert {
        (one["model"], one["mode"]) for one in whole["runs"] if one["verdict"] != "not run"
    } == ran_once


# what the support matrix makes of merged files


@pytest.fixture(scope="module")
def queue():
    return series.read(ROOT)[0]


def merged(queue, feature: cells.Feature, **of_model) -> dict:
    """The feature's models on 0.5.9, each from a host of its own; of_model: model (- as _) -> what
    is otherwise there."""
    pin = PINS.find("v0.5.9")
    facts = {
        "version": str(pin.version),
        "changes": Selection(queue, pin).effect_sha256,
        "date": "2030-01-02",
        "gpu": gpu(),
        "harness": RULES,
        "torch": {"version": "2.9.1", "pinned": "2.9.1", "off_pin": False},
        "kernel": None,
        "lifetimes": {"verdict": "passed", "why": ""},
    }
    results = [
        (
            Path(model),
            facts | {"runs": ran(model, feature.mode)} | of_model.get(model.replace("-", "_"), {}),
        )
        for model in feature.models
    ]
    return fold(None, results, facts["changes"], RULES)[0]


def judged(queue, feature, **of_model) -> matrix.Cell | None:
    return judge(merged(queue, feature, **of_model), queue, feature)


def test_a_cell_of_two_hosts_names_both(queue):
    assert judged(queue, NEMOTRON) == matrix.Cell(
        matrix.State.PROVEN, "on NVIDIA Fake 1 with torch 2.9.1"
    )
    other = {"torch": {"version": "2.11.0", "pinned": "2.9.1", "off_pin": True}}
    told = judged(queue, NEMOTRON, nemotron_h_moe=other)
    assert (
        told.state is matrix.State.PROVEN
        and "torch 2.9.1; on NVIDIA Fake 1 with torch 2.11.0, off the release's pin" in told.reason
    )


@pytest.mark.parametrize(
    ("feature", "changed", "state", "text"),
    [
        (
            NEMOTRON,
            {"changes": "sha256:0", "date": "2029-12-31"},
            matrix.State.STALE,
            "since the run of 2029-12-31",
        ),
        (
            NEMOTRON,
            {"runs": ran("nemotron-h-moe", verdict="failed")},
            matrix.State.FAILED,
            "nemotron-h-moe",
        ),
        (NEMOTRON, {"harness": "older"}, matrix.State.PROVEN, "by an earlier harness"),
        (
            BREAKABLE,
            {"lifetimes": {"verdict": "failed", "why": "2 faults"}},
            matrix.State.FAILED,
            "2 faults",
        ),
        (BREAKABLE, {"lifetimes": None}, matrix.State.PROVEN, "lifetimes not checked in this run"),
    ],
)
def test_one_host_of_two_can_keep_a_cell_from_being_proven(queue, feature, changed, state, text):
    told = judged(queue, feature, nemotron_h_moe=changed)
    assert told.state is state and text in told.reason


def test_one_model_of_two_proves_no_cell(queue):
    assert (
        judged(queue, NEMOTRON, nemotron_h_moe={"runs": [run("nemotron-h-moe", "reference")]})
        is None
    )


def test_a_failure_on_another_gpu_is_told_beside_a_proof(queue, tmp_path, monkeypatch):
    good, bad = (
        merged(queue, NEMOTRON),
        merged(queue, NEMOTRON, nemotron_h={"runs": ran("nemotron-h", verdict="failed")}),
    )
    bad["gpu"] = gpu(name="NVIDIA Fake 2")
    records = [fakes.recorded(one, Record) for one in (bad, good)]
    monkeypatch.setattr(matrix, "proofs", lambda root, version: records)
    told = matrix.cell(ROOT, queue, PINS.find("v0.5.9"), NEMOTRON)
    assert told.state is matrix.State.PROVEN and "failed on NVIDIA Fake 2" in told.reason


# the command


def test_status_merge_reports_each_file(fleet, capsys):
    page = fleet.root / status.PAGE
    page.parent.mkdir(exist_ok=True)
    page.write_text(status.BEGIN + status.END)
    (fleet.root / status.PATCHES).write_text(status.PATCHES_BEGIN + status.PATCHES_END)
    fleet.lay("good", ran("one"))
    words = ["--root", str(fleet.root), "status", "--merge", str(fleet.results)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        "good/evidence.json: taken into evidence/9.9.1/nvidia-fake-1.json: 2 of 2 runs" in out
        and "1 result: 1 taken" in out
    )
    fleet.lay("touched", ran("one"), tree_untouched=False)
    assert main(words) == 1
    out = capsys.readouterr().out
    assert (
        "good/evidence.json: already there: 2 runs" in out
        and "touched/evidence.json: refused: files of the tree were changed" in out
    )
