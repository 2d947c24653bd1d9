"""The README says what is so: its field table is the rules' own, its patches and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from patchqueue.queue import header, series

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def between(name: str) -> str:
    return README.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def test_the_field_table_is_the_rules_own():
    assert between("fields") == header.documentation()


def test_every_patch_has_a_row():
    queue, problems = series.read(ROOT)
    assert problems == []
    rows = set(re.findall(r"^\| `([a-z0-9-]+/[a-z0-9.-]+)` \|", README, re.MULTILINE))
    assert rows == {entry.base.removesuffix(".patch") for entry in queue.entries}


@pytest.mark.parametrize("session", sorted(set(re.findall(r"nox -s ([a-z]+)", README))))
def test_every_session_named_exists(session):
    assert f"\ndef {session}(session: nox.Session)" in (ROOT / "noxfile.py").read_text(encoding="utf-8")
