"""Programs that the tool runs: what of the caller's environment reaches them, and how they fail."""

from __future__ import annotations

import fakes
import pytest

from patchqueue.files import run
from patchqueue.outcome import Refused

STEERING = {
    run.GIT: ("GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_COUNT"),
    run.UV: ("UV_INDEX", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER", "VIRTUAL_ENV"),
    run.QUILT: ("QUILTRC", "QUILT_PATCHES_PREFIX", "POSIXLY_CORRECT", "ENV"),
}
KEPT = {
    run.GIT: "GIT_SSL_CAINFO",
    run.UV: "UV_INDEX_URL",
    run.QUILT: "EDITOR",
    run.DIFF: "TMPDIR",
}


@pytest.mark.parametrize("tool", KEPT, ids=lambda tool: tool.name)
def test_what_steers_a_program_does_not_reach_it(tool, tmp_path, monkeypatch):
    for name in (*STEERING.get(tool, ()), KEPT[tool]):
        monkeypatch.setenv(name, "the user's")
    fakes.program(tmp_path / "tool", "env")
    said = run.run(tool, program=str(tmp_path / "tool")).stdout.decode().splitlines()
    found = dict(line.partition("=")[::2] for line in said)
    assert not found.keys() & set(STEERING.get(tool, ())) and found[KEPT[tool]] == "the user's"
    assert all(found[name] == value for name, value in tool.given.items())


def test_a_failure_is_told_by_its_last_line(tmp_path):
    fakes.program(tmp_path / "git", "echo first >&2; echo 'fatal: last' >&2; exit 3")
    with pytest.raises(run.Failed, match="^last$") as failure:
        run.run(run.GIT, program=str(tmp_path / "git"))
    assert failure.value.said == "first\nfatal: last" and failure.value.done.returncode == 3
    assert run.run(run.GIT, program=str(tmp_path / "git"), good=(3,)).returncode == 3


@pytest.mark.parametrize("tool", KEPT, ids=lambda tool: tool.name)
def test_what_is_missing_is_named_with_the_way_to_have_it(tool, tmp_path):
    with pytest.raises(Refused) as refusal:
        run.run(tool, program=str(tmp_path / "none"))
    (problem,) = refusal.value.problems
    assert problem.name == f"no-{tool.name}" and problem.hint == tool.install
