"""Pull requests from patches that are Pending: their branches, files, form, text and mails."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import asked
import fakes
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.commands import cli
from patchqueue.files import run
from patchqueue.handover import additions, claims, export, formatting, prbody, prtest
from patchqueue.handover.repository import open_repository
from patchqueue.handover.size import sizes
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue import header
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]
TEST = "test/registered/unit/test_steps.py"
COUNT, CUT = "steps/count-once-more", "steps/name-the-cut"
REGISTER = "from sglang.test.ci.ci_register import register_cpu_ci"
CASES = f'''"""Steps."""

import unittest

{REGISTER}

register_cpu_ci(est_time=1, suite="base-a-test-cpu")


class TestSteps(unittest.TestCase):
    def test_once_more(self):
        assert 1
'''


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where uv keeps what it fetched, on this machine: asked for before the tests get homes of
    their own; and where it locks."""
    cache = (
        os.environ.get("UV_CACHE_DIR")
        or f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/uv"
    )
    return {"UV_CACHE_DIR": cache, "UV_TOOL_DIR": str(tmp_path_factory.mktemp("uv"))}


@pytest.fixture
def sent(
    tools: dict[str, str], project: fakes.Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> fakes.Project:
    """A project with two patches to send, one with a test, and its release as a checkout in
    sglang/."""
    monkeypatch.setattr(formatting, "_run", asked.run)
    for name, value in tools.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    shutil.copy(ROOT / "upstream/format.toml", project.root / "upstream/format.toml")
    project.edit("upstream/format.toml", ">=0.5.19", ">=9")
    project.write(f"pull-requests/{COUNT}/{TEST}", CASES)
    notes = tmp_path / "sglang/python/sglang/srt/steps/notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("upstream has this folder\n")
    project.checkout(tmp_path / "sglang")
    return project


def send(
    project: fakes.Project, *words: str, base: str = "HEAD", together: bool = True
) -> export.Exported:
    checkout = str(project.root.parent / "sglang")
    return export.export(
        project.root, pins.load(project.root), checkout, words, base, together=together
    )


def git(project: fakes.Project, *words: str) -> str:
    return subprocess.run(
        ["git", *words],
        cwd=project.root.parent / "sglang",
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def names(project: fakes.Project, commit: str) -> list[str]:
    return git(project, "diff-tree", "-r", "--no-commit-id", "--name-only", commit).split()


def refused(project: fakes.Project, *words: str, base: str = "HEAD"):
    refs = git(project, "for-each-ref")
    with pytest.raises(Refused) as error:
        send(project, *words, base=base)
    assert git(project, "for-each-ref") == refs, "no branch was made"
    return error.value.problems[0]


def commit(project: fakes.Project, **files: str) -> None:
    """Another commit on upstream's main branch. files: of sglang/srt/, by their stem."""
    for stem, content in files.items():
        (project.root.parent / "sglang/python/sglang/srt" / f"{stem}.py").write_text(content)
    git(project, "add", "-A")
    git(project, "-c", "commit.gpgSign=false", "commit", "-q", "-m", "upstream goes on")


def test_a_branch_for_each_topic_a_commit_for_each_patch(sent):
    done = send(sent)
    [request] = done.requests
    assert (request.branch, request.outcome, done.exact) == (
        "prefill-graph/steps",
        Outcome.APPLIED,
        True,
    )
    assert names(sent, f"{request.branch}~1") == [
        fakes.RUNNER,
        "python/sglang/srt/steps/__init__.py",
        TEST,
    ]
    assert names(sent, request.branch) == ["python/sglang/srt/cut.py"]
    assert (
        git(sent, "show", "--no-patch", "--format=%an%n%B", f"{request.branch}~1").strip()
        == "Ada\nCount the steps once more\n\nWhy: without it a user saw too few steps."
    )
    assert send(sent).requests[0].outcome is Outcome.ALREADY_APPLIED


def test_edits_are_refused_only_where_the_base_is_what_is_checked_out(sent):
    (sent.root.parent / "sglang" / fakes.RUNNER).write_text("step = 2\n")
    assert refused(sent).name == "edited-checkout"
    assert send(sent, base=fakes.TAG).requests[0].outcome is Outcome.APPLIED
    assert (sent.root.parent / "sglang" / fakes.RUNNER).read_text() == "step = 2\n"


def test_one_patch_alone_can_be_sent(sent):
    [request] = send(sent, CUT).requests
    assert request.branch == "prefill-graph/steps-name-the-cut" and [
        part.patch for part in request.parts
    ] == [CUT]


def test_a_patch_comes_with_what_it_needs_below_it(sent):
    sent.edit(f"patches/{CUT}.patch", "Overlay: none", f"Overlay: none\nNeeds: {COUNT}.patch")
    done = send(sent, CUT)
    assert [(part.patch, part.own) for part in done.requests[0].parts] == [
        (COUNT, False),
        (CUT, True),
    ]
    text = prbody.body(load_queue(sent.root), done, done.requests[0])
    assert 'This stands on "Count the steps once more"' in text.replace("\n", " ")


def test_what_a_patch_needs_is_below_it_though_the_series_has_it_later(sent):
    pending = "Upstream-Status: Pending"
    sent.edit(f"patches/{COUNT}.patch", pending, f"{pending}\nNeeds: {CUT}.patch")
    assert [(part.patch, part.own) for part in send(sent, COUNT).requests[0].parts] == [
        (CUT, False),
        (COUNT, True),
    ]


def test_a_pull_request_can_stand_on_what_the_patch_does_without(sent):
    """The queue has no need of it, so that a branch for a fork can leave it out."""
    text = 'motivation = "Why."\nmodifications = "What."\nbelow = ["%s"]\n'
    sent.write(f"pull-requests/{CUT}/pull-request.toml", text % COUNT)
    assert [(part.patch, part.own) for part in send(sent, CUT).requests[0].parts] == [
        (COUNT, False),
        (CUT, True),
    ]
    sent.write(f"pull-requests/{CUT}/pull-request.toml", text % "steps/unheard-of")
    found = refused(sent, CUT)
    assert found.name == "bad-pull-request" and "below names no patch" in found.what


FIRST = "steps/begin-to-count"
PROBE = f"{fakes.RUNNER} :: since = 9"


def lead(project: fakes.Project, goal: str = COUNT, **fields: str) -> None:
    """Write a step to `goal`, which stands on it. fields: other words of the step's text."""
    text = 'motivation = "Why."\nmodifications = "What."\n'
    of_step = {"title": "[Refactor] Begin", "step_to": goal, "probe": PROBE} | fields
    lines = "".join(f'{name} = "{value}"\n' for name, value in of_step.items() if value)
    project.write(f"pull-requests/{FIRST}/pull-request.toml", text + lines)
    project.write(f"pull-requests/{goal}/pull-request.toml", f'{text}below = ["{FIRST}"]\n')


def test_a_step_is_sent_before_the_patch_that_it_leads_to(sent):
    """It has no patch in the series, and so no place in a patched release."""
    lead(sent)
    before = fakes.numbered(40)
    after = before.replace("step_9 = 9\n", "step_9 = 9\nsince = 9\n")
    text = f"Variant-Of: {FIRST}.patch\n\n" + fakes.diff(fakes.RUNNER, before, after)
    sent.write(f"pull-requests/{FIRST}/change@9.9.patch", text)
    done = send(sent, FIRST, COUNT)
    step, goal = done.requests
    assert [(part.patch, part.own) for part in step.parts] == [(FIRST, True)]
    assert [(part.patch, part.own) for part in goal.parts] == [(FIRST, False), (COUNT, True)]
    assert git(sent, "show", f"{step.tip}:{fakes.RUNNER}") == after
    made = git(sent, "show", f"{goal.tip}:{fakes.RUNNER}")
    assert "since = 9\n" in made and "added_step = 20\n" in made
    assert prbody.title(step) == "[Refactor] Begin"
    assert "## Motivation\n\nWhy.\n" in prbody.body(load_queue(sent.root), done, step)
    commit(sent, runner=after)
    git(sent, "branch", "-D", goal.branch)
    again = send(sent, COUNT)
    assert again.merged == (f"{FIRST}.patch",), "upstream has the step"
    assert [part.patch for part in again.requests[0].parts] == [COUNT]


def test_a_step_can_be_new_files_alone(sent):
    lead(sent)
    sent.write(f"pull-requests/{FIRST}/python/sglang/srt/counting.py", "count = 1\n")
    [request] = send(sent, FIRST).requests
    assert names(sent, request.branch) == ["python/sglang/srt/counting.py"]


def test_all_that_a_pull_request_stands_on_is_named(sent):
    lead(sent)
    sent.write(f"pull-requests/{FIRST}/python/sglang/srt/counting.py", "count = 1\n")
    text = f'motivation = "Why."\nmodifications = "What."\nbelow = ["{COUNT}"]\n'
    sent.write(f"pull-requests/{CUT}/pull-request.toml", text)
    done = send(sent, CUT)
    named = '"[Refactor] Begin", "Count the steps once more", of other pull requests.'
    assert named in prbody.body(load_queue(sent.root), done, done.requests[0])


def test_a_release_gets_no_step_to_what_it_does_not_get_and_none_without_a_change(sent):
    lead(sent)
    assert [part.patch for part in send(sent).requests[0].parts] == [COUNT, CUT]
    sent.edit("series", "# ==9.9.1", "# ==9.9.2")
    header = "Gap: ==9.9.1: nobody counts\n there\nOverlay: none"
    sent.edit(f"patches/{CUT}.patch", "Overlay: none", header)
    sent.release("9.9.2")
    sent.place()
    sent.write(f"pull-requests/{FIRST}/python/sglang/srt/counting.py", "count = 1\n")
    lead(sent, CUT)
    (sent.root / f"pull-requests/{COUNT}/pull-request.toml").unlink()
    assert refused(sent, FIRST).name == "unknown-topic"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"step_to": "steps/unheard-of"}, "nor 'steps/unheard-of', its step_to"),
        ({"step_to": "", "probe": ""}, f"is named {FIRST!r}, and it has no step_to"),
        ({"title": ""}, "a step has no title"),
        ({"probe": "since = 9"}, "a step's probe is 'since = 9'"),
        ({"step_to": ""}, "it has a probe, and no step_to"),
    ],
)
def test_a_step_says_what_a_header_says_of_others(sent, fields, what):
    lead(sent, **fields)
    found = refused(sent)
    assert (found.name, found.where) == (
        "bad-pull-request",
        f"pull-requests/{FIRST}/pull-request.toml",
    )
    assert what in found.what


def test_a_patch_is_no_step(sent):
    """Its text had step_to, which nobody heeded."""
    lead(sent, CUT)
    text = 'title = "Begin"\nmotivation = "Why."\nmodifications = "What."\n'
    step = f'step_to = "{CUT}"\nprobe = "{PROBE}"\n'
    sent.write(f"pull-requests/{COUNT}/pull-request.toml", text + step)
    found = refused(sent, CUT)
    assert "it has step_to, and its patch is in the series" in found.what
    assert found.where == f"pull-requests/{COUNT}/pull-request.toml"


def test_a_bad_text_keeps_no_other_patch_from_being_sent(sent):
    sent.write(f"pull-requests/{COUNT}/pull-request.toml", "motivation = 1\n")
    assert [request.name for request in send(sent, CUT).requests] == [CUT]


SECOND = "steps/a-second-beginning"


def second(project: fakes.Project, below: str) -> None:
    """A step whose name comes before the first one's. below: what it stands on."""
    text = 'title = "Second"\nmotivation = "Why."\nmodifications = "What."\n'
    step = f'step_to = "{COUNT}"\nprobe = "{PROBE}"\nbelow = ["{below}"]\n'
    project.write(f"pull-requests/{SECOND}/pull-request.toml", text + step)
    project.write(f"pull-requests/{SECOND}/python/sglang/srt/second.py", "second = 2\n")


def test_steps_are_laid_in_the_order_in_which_they_stand(sent):
    """Their names say nothing of it."""
    lead(sent)
    sent.write(f"pull-requests/{FIRST}/python/sglang/srt/counting.py", "count = 1\n")
    second(sent, FIRST)
    [request] = send(sent, SECOND).requests
    assert [(part.patch, part.own) for part in request.parts] == [(FIRST, False), (SECOND, True)]


def test_a_patch_that_stands_on_another_one_unsaid_comes_with_it(sent):
    after = fakes.numbered(40).replace("step_20 = 20\n", "step_20 = 20\nadded_step = 20\n")
    text = fakes.patch_text(
        before=after,
        after=after.replace("added_step = 20", "added_step = 21"),
        Probe=f"{fakes.RUNNER} :: added_step = 21",
    )
    sent.write("patches/steps/count-twice.patch", text)
    sent.edit(
        "series", "steps/name-the-cut", "steps/count-twice.patch  # >=9.9,<10\nsteps/name-the-cut"
    )
    assert [
        (part.patch, part.own) for part in send(sent, "steps/count-twice").requests[0].parts
    ] == [(COUNT, False), ("steps/count-twice", True)]


def test_what_is_not_pending_is_not_sent(sent):
    sent.edit(
        f"patches/{CUT}.patch",
        "Upstream-Status: Pending",
        "Upstream-Status: Inappropriate: of our own",
    )
    assert [part.patch for part in send(sent).requests[0].parts] == [COUNT]
    sent.edit(f"patches/{COUNT}.patch", "Upstream-Status: Pending", "Upstream-Status: Submitted #1")
    assert refused(sent).name == "nothing-pending"


def test_files_of_its_own_take_the_overlays_place(sent):
    sent.write(f"pull-requests/{COUNT}/python/sglang/srt/counting.py", "count = 1\n")
    [request] = send(sent).requests
    assert names(sent, f"{request.branch}~1") == [
        "python/sglang/srt/counting.py",
        fakes.RUNNER,
        TEST,
    ]


def mended(line: str) -> str:
    """A change@….patch that adds `line` to the runner."""
    before = fakes.numbered(40)
    return f"Variant-Of: {COUNT}.patch\n\n" + fakes.diff(
        fakes.RUNNER, before, before.replace("step_20 = 20\n", f"step_20 = 20\n{line}\n")
    )


def test_a_text_of_its_own_is_sent_in_place_of_the_series(sent):
    """The newest that is not above the release; no file of the overlay goes along."""
    for version in ("9.8", "9.9", "9.10"):
        sent.write(
            f"pull-requests/{COUNT}/change@{version}.patch",
            mended(f"since = {version.replace('.', '')}"),
        )
    [request] = send(sent).requests
    assert names(sent, f"{request.branch}~1") == [fakes.RUNNER, TEST]
    made = git(sent, "show", f"{request.branch}:{fakes.RUNNER}")
    assert "since = 99\n" in made and "added_step" not in made


def test_a_text_of_its_own_that_does_not_fit_is_named(sent):
    sent.write(
        f"pull-requests/{COUNT}/change@9.9.patch", mended("x = 1").replace("step_19", "step_91")
    )
    problem = refused(sent)
    assert (problem.name, problem.where.partition(":")[0]) == (
        "conflict",
        f"pull-requests/{COUNT}/change@9.9.patch",
    )
    sent.write(f"pull-requests/{COUNT}/change@9.9.patch", "no diff")
    assert refused(sent).where == f"pull-requests/{COUNT}/change@9.9.patch"


def test_everything_is_put_into_upstreams_form(sent):
    head = f"from sglang import b\nimport os\n{REGISTER}\n\n\n"
    sent.write(f"pull-requests/{COUNT}/{TEST}", f"{head}register_cpu_ci(1)\nprint(os,   b, 'x')\n")
    done = send(sent)
    assert git(sent, "show", f"{done.requests[0].tip}:{TEST}") == (
        f'import os\n\nfrom sglang import b\n{REGISTER}\n\nregister_cpu_ci(1)\nprint(os, b, "x")\n'
    )
    assert done.tidied == (TEST,)


def test_what_upstreams_linters_refuse_is_refused(sent):
    sent.write(f"pull-requests/{COUNT}/{TEST}", "import os\n\nprint(teh)  # teh\n")
    problem = refused(sent)
    assert problem.name == "upstream-lint" and "F401" in problem.what


def test_a_quoted_annotation_is_refused_as_upstream_does(sent):
    text = "from __future__ import annotations\n\n\ndef count(steps: 'int'):\n    return steps\n"
    sent.write(f"pull-requests/{COUNT}/python/sglang/srt/counting.py", text)
    assert "UP037" in refused(sent).what


def test_changed_files_are_spelled_too_and_only_our_lines(sent):
    (sent.root.parent / "sglang/python/sglang/srt/page.py").write_text("# upstream's teh\n")
    name = f"pull-requests/{COUNT}/change@9.9.patch"
    sent.write(name, mended("spelled = 1  # recieve"))
    problem = refused(sent, base=fakes.TAG)
    assert problem.name == "upstream-lint" and "recieve ==> receive" in problem.what
    sent.edit(name, "recieve", "nothink")
    assert send(sent, base=fakes.TAG).requests, "a word that upstream's .codespellrc allows"


def test_upstreams_written_rules_are_asked(sent):
    name = f"pull-requests/{COUNT}/python/sglang/srt/counting.py"
    sent.write(
        name, "from dataclasses import dataclass\n\n\n@dataclass\nclass Count:\n    a: int\n"
    )
    assert refused(sent).name == "upstream-dataclass"
    sent.write("pull-requests/steps/count-once-more/python/sglang/srt/mine/a.py", "a = 1\n")
    sent.write(name, "b = hasattr(1, 'a')\n")
    problem = refused(sent)
    assert (problem.name, problem.where) == ("upstream-new-package", "python/sglang/srt/mine")
    (sent.root / "pull-requests/steps/count-once-more/python/sglang/srt/mine/a.py").unlink()
    [warning] = send(sent, COUNT).requests[0].warnings
    assert warning.startswith("python/sglang/srt/counting.py:1: hasattr() hides")


def test_of_a_joined_file_our_cases_alone_are_run(sent, tmp_path, monkeypatch):
    """Others of the file may need a GPU."""
    path = sent.root.parent / "sglang" / TEST
    path.parent.mkdir(parents=True)
    path.write_text(CASES.replace("test_once_more", "test_theirs"))
    commit(sent)
    done = send(sent, COUNT)
    ran = []

    def runs(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, len(ran) - 1, "= 1 passed in 1s =", "")

    made = SimpleNamespace(python="python", variables={"PYTHONPYCACHEPREFIX": "x"})
    monkeypatch.setattr(prtest, "build_environment", lambda *_: made)
    repository = open_repository(str(sent.root.parent / "sglang"))
    monkeypatch.setattr(prtest.subprocess, "run", Runs(runs, subprocess.run))
    [tried] = prtest.try_tests(sent.root, repository, done, done.requests[0])
    assert tried.good and tried.said == ("1 passed", "1 passed")
    assert [command[-3:] for command in ran] == [[TEST, "-k", "(TestSteps and test_once_more)"]] * 2


@dataclass(frozen=True)
class Runs:
    """subprocess.run, with another answer where pytest is asked."""

    tests: Callable[..., subprocess.CompletedProcess[str]]
    others: Callable[..., subprocess.CompletedProcess[str]]

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        of_tests = "host.upstream" in command
        return (self.tests if of_tests else self.others)(command, **options)


def test_what_upstream_itself_has_in_another_form_is_left(sent):
    commit(sent, runner=fakes.numbered(40) + "odd = 'quoted'\n")
    [request] = send(sent).requests
    assert "odd = 'quoted'" in git(sent, "show", f"{request.tip}:{fakes.RUNNER}")


def test_on_a_later_upstream_hunks_are_laid_where_their_text_stands(sent):
    commit(sent, runner="# new\n" + fakes.numbered(40))
    done = send(sent)
    assert not done.exact and done.requests[0].parts[0].row.outcome is Outcome.APPLIED
    assert "step_20 = 20\nadded_step = 20\n" in git(
        sent, "show", f"{done.requests[0].tip}:{fakes.RUNNER}"
    )


def test_what_waits_and_is_not_for_the_release_is_named(sent):
    """A release behind it gets it: on this one it is named, with the reason."""
    sent.edit("series", "# ==9.9.1", "# ==9.9.2")
    header = "Gap: ==9.9.1: nobody counts\n there\nOverlay: none"
    sent.edit(f"patches/{CUT}.patch", "Overlay: none", header)
    sent.release("9.9.2")
    sent.place()
    done = send(sent)
    assert done.pin.tag == fakes.TAG and done.kept == ((CUT, "nobody counts there"),)
    assert [part.patch for part in done.requests[0].parts] == [COUNT]


def test_a_patch_that_can_never_be_sent_has_to_say_so(sent):
    """The newest release that the queue is carried to does not get it."""
    sent.release("9.9.2")
    sent.place()
    problem = refused(sent)
    assert (problem.name, problem.where) == ("never-sent", f"patches/{CUT}.patch")
    text = "Upstream-Status: Pending"
    sent.edit(f"patches/{CUT}.patch", text, "Upstream-Status: Inappropriate: nobody counts there")
    assert send(sent).kept == ()


def test_every_pending_patch_of_the_project_can_be_sent():
    assert export.never_sent(load_queue(ROOT), pins.load(ROOT).all) == []


def test_what_upstream_has_meanwhile_is_left_out(sent):
    commit(sent, cut=fakes.RELEASE["sglang/srt/cut.py"] + "\nsix = 6\n")
    done = send(sent)
    assert done.merged == (f"{CUT}.patch",) and [part.patch for part in done.requests[0].parts] == [
        COUNT
    ]


def test_a_conflict_says_where(sent):
    commit(sent, runner=fakes.numbered(40, "other"))
    problem = refused(sent)
    assert problem.name == "conflict" and COUNT in problem.where and "fits nowhere" in problem.what


def test_a_file_that_upstream_has_is_not_written_over(sent):
    sent.write(f"pull-requests/{COUNT}/python/sglang/srt/cut.py", "ours = 1\n")
    assert (refused(sent).name, refused(sent).where) == ("file-exists", "python/sglang/srt/cut.py")


def test_cases_join_a_test_file_that_upstream_has(sent):
    path = sent.root.parent / "sglang" / TEST
    path.parent.mkdir(parents=True)
    theirs = CASES.replace("test_once_more", "test_theirs")
    path.write_text(theirs + '\n\nif __name__ == "__main__":\n    unittest.main()\n')
    commit(sent)
    [request] = send(sent, COUNT).requests
    made = git(sent, "show", f"{request.tip}:{TEST}")
    assert made.index("test_theirs") < made.index("test_once_more") < made.index("__main__")
    assert made.count("register_cpu_ci(") == 1 and request.parts[0].added == {
        "python/sglang/srt/steps/__init__.py"
    }
    assert request.parts[0].cases == {TEST: ("(TestSteps and test_once_more)",)}


def test_an_unknown_topic_is_answered_with_those_there_are(sent):
    problem = refused(sent, "stpes")
    assert problem.name == "unknown-topic" and "steps" in problem.what and COUNT in problem.hint


def test_where_one_branch_is_the_users_none_is_made(sent):
    git(sent, "branch", "prefill-graph/steps-name-the-cut")
    assert refused(sent, COUNT, CUT).name == "branch-exists"


@pytest.mark.parametrize("title", ["", "[Fix] Count once more"])
def test_git_am_of_the_mails_gives_the_same_commits(sent, tmp_path, title):
    if title:
        sent.write(f"pull-requests/{COUNT}/pull-request.toml", TEXT)
    [request] = send(sent, *([COUNT] if title else [])).requests
    files = export.write(request, {"body.md": "text"}, tmp_path / "out")
    assert [file.name[:4] for file in files] == ["body", "0001", "0002"][: 2 if title else 3]
    assert not title or title.encode() in request.mails[files[1].name]
    git(sent, "clone", "-q", "--no-checkout", ".", str(tmp_path / "clone"))
    for words in (
        ("checkout", "-q", request.base),
        ("am", "--keep-non-patch", "-q", "--committer-date-is-author-date", *map(str, files[1:])),
    ):
        subprocess.run(["git", *words], cwd=tmp_path / "clone", check=True)
    assert (
        subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=tmp_path / "clone", capture_output=True, text=True
        ).stdout.strip()
        == request.tip
    )


TEMPLATE = """<!-- Thank you. -->
## Motivation
<!-- why -->

## Modifications

## Accuracy Tests

## Speed Tests and Profiling

## Checklist

<!-- tick -->
- [ ] Format your code.
- [ ] Add unit tests.
- [ ] Update documentation.
- [ ] Provide accuracy and speed benchmark results.
- [ ] Follow the code style.

## Review and Merge Process

1. Ask upstream.
"""
TEXT = """
title = "[Fix] Count once more"
motivation = "A step is lost: the count begins late."
modifications = "Count before the step, since the step may end the count."
outputs = false
steady = true
not_run = "It was not run on several GPUs."
[failure]
command = "python -m sglang.count"
before = "Traceback: too few"
after = "ten steps"
run = "one"
[[related]]
number = 37448
what = "counts elsewhere"
[[runs]]
name = "one"
where = "a CPU"
command = "python -m sglang.count"
base = "v9.9.1"
branch = "BRANCH"
[[claims]]
says = "A step is lost"
shown_by = "failure"
[[claims]]
says = "The count is right"
shown_by = "tests"
"""
TRIED = [prtest.Tried(TEST, COUNT, True, True, ("1 passed", "1 failed"))]


def in_template(project: fakes.Project) -> None:
    """Give the base upstream's template."""
    path = project.root.parent / "sglang" / export.TEMPLATE
    path.parent.mkdir(parents=True)
    path.write_text(TEMPLATE)
    commit(project)


def said(project: fakes.Project, text: str = "", tried: list[prtest.Tried] = TRIED) -> str:
    if text:
        project.write(f"pull-requests/{COUNT}/pull-request.toml", text)
    done = send(project, COUNT)
    return prbody.body(load_queue(project.root), done, done.requests[0], tried)


def test_a_patch_is_a_pull_request_of_its_own(sent):
    done = send(sent, together=False)
    assert [(request.branch, len(request.parts)) for request in done.requests] == [
        ("prefill-graph/steps-count-once-more", 1),
        ("prefill-graph/steps-name-the-cut", 1),
    ]
    assert git(sent, "rev-parse", f"{done.requests[1].branch}~1").strip() == done.base
    assert [request.name for request in send(sent, "steps", together=False).requests] == [
        COUNT,
        CUT,
    ]


def test_a_text_that_stands_beside_anothers_lines_is_laid_alone(sent):
    """Two hunks whose context is the other's line: neither needs the other."""
    before = fakes.numbered(40).replace("step_20 = 20\n", "step_20 = 20\nadded_step = 20\n")
    text = fakes.patch_text(
        before=before,
        after=before.replace("step_22 = 22\n", "step_22 = 23\n"),
        Probe=f"{fakes.RUNNER} :: step_22 = 23",
    )
    sent.write("patches/steps/count-beside.patch", text)
    sent.edit(
        "series", "steps/name-the-cut", "steps/count-beside.patch  # >=9.9,<10\nsteps/name-the-cut"
    )
    [request] = send(sent, "steps/count-beside").requests
    [part] = request.parts
    assert part.own and "of context: it stands beside another patch" in part.row.why
    assert "added_step" not in git(sent, "show", f"{request.tip}:{fakes.RUNNER}")


def test_the_text_is_upstreams_template_filled_in(sent):
    in_template(sent)
    text = said(sent, TEXT)
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [*prbody.SECTIONS]
    for words in (
        "## Motivation\n\nA step is lost: the count begins late.\n\n- #37448: counts elsewhere",
        "```\npython -m sglang.count\n```\n\nBefore:\n\n```\nTraceback: too few\n```",
        "After:\n\n```\nten steps\n```",
        "## Modifications\n\nCount before the step, since",
        f"## Accuracy Tests\n\n{prbody.NO_OUTPUTS}",
        "| `test_steps.py` | 1 passed | 1 failed |",
        f"## Speed Tests and Profiling\n\n{prbody.STEADY}",
        "- [x] Format your code.\n- [x] Add unit tests.\n- [ ] Update documentation.",
        "- [x] Provide accuracy and speed",
        "1. Ask upstream.",
    ):
        assert words in text
    [request] = send(sent, COUNT).requests
    assert git(sent, "show", "--no-patch", "--format=%B", request.tip).strip() == (
        "[Fix] Count once more\n\nA step is lost: the count begins late.\n\n"
        "Count before the step, since the step may end the count."
    )
    assert prbody.title(request) == "[Fix] Count once more"
    assert text.splitlines()[-1] == "It was not run on several GPUs." and "<!--" not in text


def test_what_did_not_run_is_the_last_line_and_nowhere_else(sent):
    text = said(sent, tried=[])
    *rest, last = text.splitlines()
    assert last == "Not run: the unit tests; accuracy of a model; speed of a server."
    assert not re.search("(?i)not (run|measured)", "\n".join(rest))
    assert "- [ ] Add unit tests" in text
    assert said(sent).splitlines()[-1] == "Not run: accuracy of a model; speed of a server."


def test_runs_of_another_branch_are_no_evidence(sent):
    text = said(sent, TEXT)
    assert "Run on a CPU" not in text
    [request] = send(sent, COUNT).requests
    assert "the run 'one' of steps/count-once-more is of another branch: left out" in claims.gaps(
        request, TRIED
    )
    text = said(sent, TEXT.replace("BRANCH", request.hash))
    assert "Run on a CPU, v9.9.1 with this branch:" in text
    [request] = send(sent, COUNT).requests
    assert claims.gaps(request, TRIED) == []
    sent.edit(f"pull-requests/{COUNT}/{TEST}", "assert 1", "assert 1 + 1")
    git(sent, "branch", "-D", "prefill-graph/steps-count-once-more")
    assert send(sent, COUNT).requests[0].hash == request.hash, "tests do not change what runs"


def test_a_table_says_which_run_shows_each_claim(sent):
    sent.write(f"pull-requests/{COUNT}/pull-request.toml", TEXT)
    [request] = send(sent, COUNT).requests
    rows = [line for line in claims.table(request, TRIED).splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| A step is lost | one: a CPU, on another branch | **no** |",
        "| The count is right | unit tests: 1 passed, without the change 1 failed | yes |",
    ]
    assert request.hash in claims.table(request, [])
    [large] = sizes(request.mails.values())
    assert (large.added, large.removed, large.files) == (2, 0, 2) and large.tests > 0
    assert f": {large}\n" in claims.table(request, []) and str(large).startswith(
        "+2 -0 in 2 files, +"
    )
    assert (
        "nothing of this branch shows 'The count is right' (unit tests: left out)"
        in claims.gaps(request, [])
    )


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("begins late", "begins late \u2026", "not ASCII"),
        ("begins late", "begins late; it was not measured", "motivation says 'not measured'"),
        ("counts elsewhere", "an untested idea", "related #37448 says 'untested'"),
        ('run = "one"', 'run = "two"', "failure.run names no run: 'two'"),
        ('shown_by = "tests"', 'shown_by = "hope"', "names no run: 'hope'"),
        ("number = 37448", 'number = "#1"', "Expected `int`"),
        ('"It was not run on several GPUs."', '"""one\nline"""', "not_run has several lines"),
        ("steady = true", "stready = true", "unknown field `stready`"),
    ],
)
def test_a_text_that_is_wrong_is_refused(sent, old, new, what):
    assert old in TEXT
    sent.write(f"pull-requests/{COUNT}/pull-request.toml", TEXT.replace(old, new))
    problem = refused(sent, COUNT)
    assert (problem.name, problem.where) == (
        "bad-pull-request",
        f"pull-requests/{COUNT}/pull-request.toml",
    )
    assert what in problem.what


def test_the_command_writes_text_and_mails(sent, tmp_path, capsys):
    words = [
        "--root",
        str(sent.root),
        "export",
        "--onto",
        str(tmp_path / "sglang"),
        "--out",
        str(tmp_path / "out"),
        "--together",
        "--no-test",
    ]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert (
        f"HEAD, at {git(sent, 'rev-parse', 'HEAD')[:12]}, is {fakes.TAG}" in said
        and "prefill-graph/steps made" in said
    )
    shown = re.match(
        r"next: `git -C \S+ (log -p \S+\.\.prefill-graph/steps)`", said.splitlines()[-1]
    )[1]
    assert "Count the steps once more" in git(sent, *shown.split())
    assert sorted(file.name[:4] for file in (tmp_path / "out/steps").iterdir()) == [
        "0001",
        "0002",
        "body",
        "clai",
        "titl",
    ]
    assert f"warning: it has no {export.TEMPLATE}" in said and "warning: steps/count-" in said
    assert cli.main([*words, "nothing"]) == 1


def test_tests_run_unless_told_otherwise(sent, tmp_path, capsys):
    words = ["--root", str(sent.root), "export", "--onto", str(tmp_path / "sglang")]
    assert cli.main([*words, "--out", str(tmp_path / "out"), COUNT]) == 1
    assert "[no-environment]" in capsys.readouterr().err


def test_a_repository_of_something_else_is_named(sent, tmp_path, capsys):
    fakes.git(tmp_path / "other", "init", "-q")
    fakes.git(tmp_path / "other", "commit", "--allow-empty", "-q", "-m", "nothing")
    assert cli.main(["--root", str(sent.root), "export", "--onto", str(tmp_path / "other")]) == 1
    assert "holds no python/sglang at HEAD [no-sglang]" in capsys.readouterr().err


# Pending patches whose pull requests are not written yet: `export` makes their text of the header.
WITHOUT_DRAFT = {
    "gdn/offset-projections-in-64-bits",
    "gdn/offset-states-in-64-bits",
    "mamba2/offset-rows-in-64-bits",
    "memory-saver/pause-int8-states",
    "moe/return-routed-experts-of-own-rank",
    "weights/complete-parted-projections",
}


def test_the_projects_own_additions_belong_to_pending_patches():
    """Each Pending patch of the newest pin that has a draft, and each step to one, brings a test
    upstream would take, and nothing else lies in pull-requests/."""
    newest = pins.load(ROOT).all[-1]
    queue = additions.with_steps(ROOT, load_queue(ROOT), newest)
    pending = {
        queue.base(patch.name).removesuffix(".patch")
        for patch in queue.select(newest.version)
        if queue.header(patch.name).get("Upstream-Status") == "Pending"
    }
    files = [
        path.relative_to(ROOT / additions.FOLDER).as_posix()
        for path in (ROOT / additions.FOLDER).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert pending >= WITHOUT_DRAFT
    drafted = pending - WITHOUT_DRAFT
    assert {"/".join(name.split("/")[:2]) for name in files} == drafted
    tests = {name for name in files if name.split("/")[2] == "test"}
    assert {"/".join(name.split("/")[:2]) for name in tests} == drafted
    for name in tests:
        text = (ROOT / additions.FOLDER / name).read_text()
        assert (
            name.split("/", 2)[2].startswith("test/registered/unit/")
            and "register_cpu_ci(" in text
            and ("(CustomTestCase)" in text or "pytest.main(" in text)
        )


# what knows releases in the overlay, and need not upstream
OTHERWISE = {"OwnMemory", "_spans_of"}


def unwrapped(tree: ast.Module) -> ast.Module:
    """The same code with each string in one line: upstream's docstrings have other widths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return tree


# kernels of the overlay that read upstream's tables there, and what launches them
ON_TABLES_OF_UPSTREAM = {"ssd_varlen", "mamba2_prefill_graph", "gdn_prefill_graph"}
BROUGHT = sorted((ROOT / additions.FOLDER).rglob("python/**/[!_]*.py"))


@pytest.mark.parametrize(
    "file",
    [file for file in BROUGHT if file.stem not in ON_TABLES_OF_UPSTREAM],
    ids=lambda file: file.stem,
)
def test_what_takes_the_overlays_place_is_the_overlays_own(file):
    """So that a repair of the one is not forgotten in the other."""
    [overlay] = (ROOT / "overlay").rglob(file.name)
    ours, theirs = (
        {
            node.name: ast.dump(node)
            for node in unwrapped(ast.parse(path.read_text())).body
            if hasattr(node, "name")
        }
        for path in (overlay, file)
    )
    assert {name for name in theirs if theirs[name] != ours.get(name)} <= OTHERWISE


def test_every_pin_has_format_rules():
    for pin in pins.load(ROOT).all:
        assert formatting.rules(ROOT, pin.version).formatter == (
            "ruff==0.15.1" if pin.version >= Version("0.5.19") else "black==26.1.0"
        )


def with_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, formatter: str
) -> formatting.Rules:
    """Rules whose isort comes from a uv that does this."""
    fakes.program(tmp_path / "uv", line)
    monkeypatch.setattr(run, "find_uv", lambda: str(tmp_path / "uv"))
    monkeypatch.setitem(formatting.FORMATTERS, formatter, ())
    tool = f"{formatter}==1"
    used = (formatting.Formatter(SpecifierSet(">0"), tool),)
    return formatting.Rules(tool, "", tool, "", "", "", used)


def test_a_formatter_that_is_not_to_be_had_is_refused_in_uvs_words(tmp_path, monkeypatch):
    by = with_uv(tmp_path, monkeypatch, "echo 'error: no network' >&2; exit 2", "unheard-of")
    with pytest.raises(Refused) as error:
        formatting.tidy({"a.py": b"x=1"}, by)
    said = str(error.value)
    assert (
        "unheard-of==1" in said
        and "error: no network" in said
        and "`uv tool run unheard-of==1 --version`" in said
    )


def test_uv_is_asked_once_for_each_tool(tmp_path, monkeypatch):
    """It takes longer than most of the tools."""
    by = with_uv(
        tmp_path,
        monkeypatch,
        f"echo asked >> {tmp_path}/asked; echo {tmp_path}/tools",
        "of-our-own",
    )
    fakes.program(tmp_path / "tools/of-our-own", 'for file; do :; done; echo "x = 1" > "$file"')
    for _ in range(2):
        assert formatting.tidy({"a.py": b"x=1"}, by) == {"a.py": b"x = 1\n"}
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_needs_is_a_field():
    text = fakes.header(Needs="a/b.patch, c/d.patch")
    found, _ = header.parse(text)
    assert found.needs == ("a/b.patch", "c/d.patch") and header.problems("x", found) == []
    assert [
        problem.name
        for problem in header.problems("x", header.parse(fakes.header(Needs="a/b@0.5.9.patch"))[0])
    ] == ["bad-field"]


def test_subtests_are_counted_apart():
    assert prtest.COUNTED.findall("= 1 passed, 2 subtests passed in 1.0s =") == [
        "1 passed",
        "2 subtests passed",
    ]
