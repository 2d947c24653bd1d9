"""The new user of the figures: how seconds, lines and answers of a command are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert

from evidence.figures import Measured
from evidence.measure import newcomer
from evidence.pages.figures import page
from evidence.records import Figures

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("a\n\nb\n", 3), ("x" * 80, 1), ("x" * 81, 2)]
)
def test_lines_are_counted_as_a_terminal_of_80_columns_folds_them(text, lines):
    assert newcomer.folded(text) == lines


@pytest.mark.parametrize(
    ("command", "answers"), [("true", 0), ("read a", 1), ("read a; read b", 2)]
)
def test_what_a_command_reads_is_an_answer(tmp_path, command, answers):
    walked = newcomer.typed(command, command, tmp_path, tmp_path)
    assert (walked.answers, walked.lines) == (answers, 0)


def test_both_outputs_are_seen_in_a_home_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHQUEUE_CACHE", "/elsewhere")
    words = 'echo "$HOME|$PATCHQUEUE_CACHE|$COLUMNS"; echo to-stderr >&2; exit 3'
    with pytest.raises(newcomer.Failed) as failed:
        newcomer.typed("x", words, tmp_path, tmp_path)
    assert f"{tmp_path}||80\nto-stderr" in str(failed.value)


def test_a_walk_is_told_with_what_was_chosen():
    steps = [
        newcomer.Walked("scripts/nox apply v0.5.9", 2.5, 34, 0, ("v0.5.9",)),
        newcomer.Walked("scripts/nox install --site-packages DIR", 0.75, 12, 1, ("DIR",)),
    ]
    told = newcomer.told(steps)
    assert (told["whole"], told["answers"], told["decisions"]) == (3.25, 1, ["v0.5.9", "DIR"])
    figure = {"name": "a new user", "shown": "3.25 s", "limit": "< 300 s", "met": True}
    machine = {"cpus": 2, "load": [1], "python": "3.11.7", "system": "one"}
    tool = {"revision": "v0.5.9", "machine": machine, "figures": [figure | {"details": told}]}
    text = page(Measured(convert(tool, Figures), [], [], {}), ())
    assert (
        "\n  - `scripts/nox apply v0.5.9`: 2.5 s, 34 lines of 80 columns\n  - `scripts/nox install"
        in text
    )
    assert "the user chose v0.5.9 and DIR, and gave 1 answer. " in text
