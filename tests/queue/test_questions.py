"""What scripts ask beside the matrix is kept by release, and a page says of each release whether it
was asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_evidence import PINS, ROOT, result

from evidence import questions
from evidence.commands.cli import main
from evidence.matrix import State
from evidence.merge import Fate
from evidence.pages import status
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Refused
from patchqueue.upstream import pins

NAME, QUESTION = "turns", "next turns"
GOOD, BAD = ({"what": QUESTION, "good": good, "why": "2 of 24"} for good in (True, False))
EARLIER = {"changes": "sha256:earlier", "queue": "sha256:earlier"}


@pytest.fixture
def asked(applied, tmp_path):
    """A project with one question, a way to lay down answers, to gather them and to ask its
    cell."""
    queue = load_queue(applied.root)
    patch = queue.base(next(iter(queue.select(applied.pin.version))).name)
    text = f'[{NAME}]\ntitle = "{QUESTION}"\nrepairs = ["{patch}"]\nasks = ">=9.9"\n'
    applied.write("evidence/questions.toml", text)
    of_today = {name: value for name, value in result(applied).items() if name != "runs"}

    class Asked:
        root, results, patched = applied.root, tmp_path / "results", patch
        kept = applied.root / f"evidence/9.9.1/questions/nvidia-fake-1.{NAME}.json"

        def lay(self, *checks: dict, folder: str = "a", **changes) -> Path:
            file = self.results / folder / f"{NAME}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            told = {"without": "", "checks": checks or [GOOD]}
            file.write_text(json.dumps(of_today | told | changes))
            return file

        def fates(self) -> list[Fate]:
            found = questions.gather(self.root, pins.load(self.root), self.results)
            return [one.fate for one in found]

        def cell(self):
            return questions.table(self.root, pins.load(self.root))[0].cells[0]

    return Asked()


def test_a_question_that_nobody_asked_says_so(asked):
    assert asked.cell().state is State.NOT_RUN
    assert asked.patched.removesuffix(".patch") in asked.cell().reason


def test_a_release_that_no_script_can_ask_says_so(asked):
    file = asked.root / "evidence/questions.toml"
    file.write_text(file.read_text().replace(">=9.9", ">=10"))
    assert asked.cell().state is State.NOT_RUN and "asks >=10 alone" in asked.cell().reason


def test_an_answer_is_kept_once_without_its_hosts_paths(asked):
    asked.lay({"what": QUESTION, "good": True, "why": "see /tmp/there/log.txt"})
    assert asked.fates() == [Fate.TAKEN] and asked.fates() == [Fate.THERE]
    assert "/tmp" not in asked.kept.read_text()
    assert asked.cell().state is State.PROVEN and "NVIDIA Fake 1" in asked.cell().reason


def test_an_answer_that_is_wrong_fails_its_cell(asked):
    asked.lay(GOOD, BAD)
    assert asked.fates() == [Fate.TAKEN]
    assert asked.cell().state is State.FAILED and "2 of 24" in asked.cell().reason


def test_a_control_proves_nothing_alone_and_is_told_beside_an_answer(asked):
    asked.lay(without="queue")
    assert asked.fates() == [Fate.TAKEN] and asked.cell().state is State.NOT_RUN
    asked.lay(folder="b")
    assert asked.fates() == [Fate.THERE, Fate.TAKEN]
    assert (
        asked.cell().state is State.PROVEN and "own tree answered otherwise" in asked.cell().reason
    )


def test_a_control_that_answered_alike_leaves_its_cell_untold(asked):
    asked.lay(folder="b")
    asked.fates()
    assert "no control ran" in asked.cell().reason
    asked.lay(BAD, without="queue")
    assert asked.fates() == [Fate.TAKEN, Fate.THERE]
    assert asked.cell().state is State.UNTOLD and "own tree answered alike" in asked.cell().reason


def test_a_control_on_another_gpu_says_nothing(asked):
    asked.lay()
    asked.lay(without="queue", folder="b", gpu={"name": "NVIDIA Fake 2"})
    assert asked.fates() == [Fate.TAKEN, Fate.TAKEN]
    assert asked.cell().state is State.PROVEN and "no control ran" in asked.cell().reason


def test_one_gpu_that_failed_outweighs_another_that_passed(asked):
    asked.lay(BAD, date="2030-01-01")
    asked.lay(folder="b", gpu={"name": "NVIDIA Fake 2"})
    assert asked.fates() == [Fate.TAKEN, Fate.TAKEN]
    assert asked.cell().state is State.FAILED and "NVIDIA Fake 1" in asked.cell().reason


def test_two_answers_of_one_weight_are_gathered_alike_in_any_order(asked):
    one, other = ({"what": QUESTION, "good": True, "why": why} for why in ("first", "second"))
    asked.lay(one), asked.lay(other, folder="b")
    asked.fates()
    kept = asked.kept.read_text()
    assert sorted(asked.fates()) == sorted([Fate.SUPERSEDED, Fate.THERE])
    asked.lay(other), asked.lay(one, folder="b")
    asked.fates()
    assert asked.kept.read_text() == kept


def test_an_answer_off_the_pinned_torch_replaces_none_on_it(asked):
    on = {"version": "2.9.1", "pinned": "2.9.1", "off_pin": False}
    asked.lay(torch=on)
    assert asked.fates() == [Fate.TAKEN]
    asked.lay(date="2031-01-01")
    assert asked.fates() == [Fate.SUPERSEDED]


def test_a_question_whose_name_begins_another_s_has_its_own_answers(asked):
    asked.lay()
    asked.fates()
    asked.kept.rename(asked.kept.with_name(f"nvidia-fake-1.{NAME}_more.json"))
    assert asked.cell().state is State.NOT_RUN


@pytest.mark.parametrize("odd", [{"version": "9.9.7"}, {"tree_untouched": False}, {"tree": "x"}])
def test_an_answer_about_no_tree_of_today_is_refused(asked, odd):
    asked.lay(**odd)
    assert asked.fates() == [Fate.REFUSED] and not asked.kept.exists()


def test_a_kept_file_that_cannot_be_read_keeps_no_other_out(asked):
    asked.kept.parent.mkdir(parents=True)
    asked.kept.write_text("{}")
    asked.lay(), asked.lay(folder="b", gpu={"name": "NVIDIA Fake 2"})
    assert asked.fates() == [Fate.REFUSED, Fate.TAKEN]


def test_an_answer_about_another_queue_is_refused_and_a_kept_one_is_stale(asked):
    asked.lay()
    asked.fates()
    kept = json.loads(asked.kept.read_text())
    asked.kept.write_text(json.dumps(kept | EARLIER))
    cell = asked.cell()
    assert cell.state is State.STALE and "which said proven" in cell.reason
    asked.lay(**EARLIER)
    assert asked.fates() == [Fate.REFUSED]
    asked.lay()
    assert asked.fates() == [Fate.TAKEN] and asked.cell().state is State.PROVEN


def test_a_later_answer_replaces_an_earlier_one_and_no_earlier_one_a_later(asked):
    asked.lay(BAD, date="2030-01-03")
    assert asked.fates() == [Fate.TAKEN]
    asked.lay(GOOD, date="2030-01-02")
    assert asked.fates() == [Fate.SUPERSEDED]
    asked.lay(GOOD, date="2030-01-03")
    assert asked.fates() == [Fate.SUPERSEDED], "of one day the one that failed stays"
    asked.lay(GOOD, date="2030-01-04")
    assert asked.fates() == [Fate.TAKEN] and asked.cell().state is State.PROVEN


@pytest.mark.parametrize("odd", [{"checks": []}, {"date": "today"}, {"gpu": 3}, {"without": "x"}])
def test_an_answer_of_another_form_keeps_no_other_out(asked, odd):
    asked.lay(**odd)
    asked.lay(folder="b")
    assert asked.fates() == [Fate.REFUSED, Fate.TAKEN]


def test_a_question_names_a_patch_that_is_there(asked):
    file = asked.root / "evidence/questions.toml"
    file.write_text(file.read_text().replace(asked.patched, "gone.patch"))
    with pytest.raises(Refused, match="gone.patch"):
        questions.load(asked.root)


def test_status_gathers_answers_where_there_is_no_proof(asked, capsys):
    for page, begin, end in (
        (status.PAGE, status.BEGIN, status.END),
        (status.PATCHES, status.PATCHES_BEGIN, status.PATCHES_END),
    ):
        (asked.root / page).parent.mkdir(exist_ok=True)
        (asked.root / page).write_text(begin + end)
    asked.lay()
    assert main(["--root", str(asked.root), "status", "--merge", str(asked.results)]) == 0
    assert "1 result: 1 taken" in capsys.readouterr().out
    assert QUESTION in (asked.root / status.PAGE).read_text()


def test_each_question_is_a_script_and_has_a_column():
    asked = questions.load(ROOT)
    assert all((ROOT / f"tests/gpu/{name}.py").is_file() for name in asked)
    for name, one in asked.items():
        first = str(one.asks).removeprefix(">=")
        assert re.search(rf"\b{re.escape(first)}\b", (ROOT / f"tests/gpu/{name}.py").read_text()), (
            f"{name}.py names no {first}"
        )
    page = (ROOT / status.PAGE).read_text()
    assert all(f" {one.title} |" in page for one in asked.values())
    assert {len(row.cells) for row in questions.table(ROOT, PINS)} == {len(asked)}
