"""Pull requests from patches that are Pending: their branches, files, form, text and mails."""

import ast
import re
from pathlib import Path

import fakes
import pytest
from fakes import ROOT

from patchqueue.applying.apply import load_queue
from patchqueue.handover import pull_requests
from patchqueue.outcome import Outcome, Problem
from patchqueue.upstream import pins

TEST = "test/registered/unit/test_steps.py"
COUNT, CUT = (name.removesuffix(".patch") for name in (fakes.COUNT, fakes.CUT))
WRITTEN = "pull-request.toml"
WORDS = 'body = "Why."\n'


@pytest.fixture
def sent(project: fakes.Project, tmp_path: Path) -> fakes.Project:
    """A project with two patches to send, one with a test, and its release in sglang/."""
    fakes.author(tmp_path / "home")
    project.write(f"pull-requests/{COUNT}/{TEST}", "assert 1\n")
    project.checkout(tmp_path / "sglang")
    return project


def send(project: fakes.Project, *words: str, base: str = "HEAD") -> pull_requests.Made:
    checkout = str(project.root.parent / "sglang")
    return pull_requests.make(project.root, project.pins, checkout, words, base)


def git(project: fakes.Project, *words: str) -> str:
    return fakes.git(project.root.parent / "sglang", *words)


def parts(request: pull_requests.PullRequest) -> list[tuple[str, bool]]:
    """The patches of a pull request, and whether each is its own."""
    return [(part.name, part is request.draft) for part in request.parts]


def refused(project: fakes.Project, *words: str, base: str = "HEAD") -> Problem:
    """The problem that a call is refused for."""
    refs = git(project, "for-each-ref")
    problem = fakes.problem_of(send, project, *words, base=base)
    assert git(project, "for-each-ref") == refs, "no branch was made"
    return problem


def names(project: fakes.Project, commit: str) -> list[str]:
    return git(project, "diff-tree", "-r", "--no-commit-id", "--name-only", commit).split()


def commit(project: fakes.Project, **files: str) -> None:
    """Another commit on upstream's main branch. files: of sglang/srt/, by their stem."""
    for stem, content in files.items():
        (project.root.parent / "sglang/python/sglang/srt" / f"{stem}.py").write_text(content)
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "upstream goes on")


def test_a_branch_for_each_patch(sent):
    done = send(sent)
    count, cut = done.requests
    assert (count.branch, count.outcome) == ("prefill-graph/steps-count-once-more", Outcome.APPLIED)
    assert done.exact
    own = [fakes.RUNNER, "python/sglang/srt/steps/__init__.py", TEST]
    assert names(sent, count.branch) == own
    assert names(sent, cut.branch) == ["python/sglang/srt/cut.py"]
    for request in done.requests:
        assert git(sent, "rev-parse", f"{request.branch}~1").strip() == done.base
    assert git(sent, "show", "--no-patch", "--format=%an%n%B", count.branch).strip() == (
        "Ada\nCount the steps once more\n\nWhy: without it a user saw too few steps."
    )
    assert [request.draft.name for request in send(sent, "steps").requests] == [COUNT, CUT]
    assert send(sent).requests[0].outcome is Outcome.ALREADY_APPLIED


@pytest.mark.parametrize(("needy", "needed"), [(CUT, COUNT), (COUNT, CUT)])
def test_a_patch_comes_with_what_it_needs_below_it(sent, needy, needed):
    """Though the series may have what is needed later."""
    pending = "Upstream-Status: Pending"
    sent.edit(f"patches/{needy}.patch", pending, f"{pending}\nNeeds: {needed}.patch")
    done = send(sent, needy)
    assert parts(done.requests[0]) == [(needed, False), (needy, True)]


def test_a_pull_request_can_stand_on_what_the_patch_does_without(sent):
    """The queue has no need of it, so that a branch for a fork can leave it out."""
    sent.write(f"pull-requests/{CUT}/{WRITTEN}", f'{WORDS}below = ["{COUNT}"]\n')
    assert parts(send(sent, CUT).requests[0]) == [(COUNT, False), (CUT, True)]
    sent.write(f"pull-requests/{CUT}/{WRITTEN}", f'{WORDS}below = ["steps/unheard-of"]\n')
    found = refused(sent, CUT)
    assert found.name == "bad-pull-request" and "below names no patch" in found.what


FIRST = "steps/begin-to-count"
PROBE = f"{fakes.RUNNER} :: since = 9"


def draft(project: fakes.Project, **fields: str) -> None:
    """Write a draft without a patch, on which COUNT stands. fields: other words of its text."""
    own = {"title": "[Refactor] Begin", "probe": PROBE} | fields
    lines = "".join(f'{name} = "{value}"\n' for name, value in own.items() if value)
    project.write(f"pull-requests/{FIRST}/{WRITTEN}", WORDS + lines)
    project.write(f"pull-requests/{COUNT}/{WRITTEN}", f'{WORDS}below = ["{FIRST}"]\n')


def test_a_draft_without_a_patch_is_sent_alone_and_below_others(sent):
    """It has no patch in the series, and so no place in a patched release."""
    draft(sent)
    before = fakes.numbered(40)
    after = before.replace("step_9 = 9\n", "step_9 = 9\nsince = 9\n")
    text = f"Variant-Of: {FIRST}.patch\n\n" + fakes.diff(fakes.RUNNER, before, after)
    sent.write(f"pull-requests/{FIRST}/change@9.9.patch", text)
    done = send(sent, FIRST, COUNT)
    first, goal = done.requests
    assert parts(first) == [(FIRST, True)] and parts(goal) == [(FIRST, False), (COUNT, True)]
    assert git(sent, "show", f"{first.tip}:{fakes.RUNNER}") == after
    made = git(sent, "show", f"{goal.tip}:{fakes.RUNNER}")
    assert "since = 9\n" in made and "added_step = 20\n" in made
    assert first.draft.title == "[Refactor] Begin"
    assert pull_requests.write(done.requests[0], sent.root).read_text() == "Why."
    commit(sent, runner=after)
    git(sent, "branch", "-D", goal.branch)
    again = send(sent, COUNT)
    assert again.merged == (FIRST,), "upstream has it"
    assert parts(again.requests[0]) == [(COUNT, True)]


def test_a_release_gets_no_draft_without_a_change_which_may_be_a_file_alone(sent):
    draft(sent)
    assert parts(send(sent).requests[0]) == [(COUNT, True)]
    (sent.root / f"pull-requests/{COUNT}/{WRITTEN}").unlink()
    assert refused(sent, FIRST).name == "unknown-topic"
    sent.write(f"pull-requests/{FIRST}/python/sglang/srt/counting.py", "count = 1\n")
    [request] = send(sent, FIRST).requests
    assert names(sent, request.branch) == ["python/sglang/srt/counting.py"]


@pytest.mark.parametrize("fields", [{"title": ""}, {"probe": ""}, {"probe": "since = 9"}])
def test_a_draft_without_a_patch_says_what_a_header_says_of_others(sent, fields):
    draft(sent, **fields)
    found = refused(sent)
    place = f"pull-requests/{FIRST}/{WRITTEN}"
    assert (found.name, found.where) == ("bad-pull-request", place)
    assert f"no patch of the series is named {FIRST!r}" in found.what


def test_what_is_not_pending_is_not_sent(sent):
    status = "Upstream-Status: {}"
    own = status.format("Inappropriate: of our own")
    sent.edit(f"patches/{CUT}.patch", status.format("Pending"), own)
    assert [request.draft.name for request in send(sent).requests] == [COUNT]
    sent.edit(f"patches/{COUNT}.patch", status.format("Pending"), status.format("Submitted #1"))
    assert refused(sent).name == "nothing-pending"


def mended(line: str) -> str:
    """A change@….patch that adds `line` to the runner."""
    before = fakes.numbered(40)
    after = before.replace("step_20 = 20\n", f"step_20 = 20\n{line}\n")
    return f"Variant-Of: {COUNT}.patch\n\n" + fakes.diff(fakes.RUNNER, before, after)


def test_a_text_of_its_own_is_sent_in_place_of_the_series(sent):
    """The newest that is not above the release; no file of the overlay goes along."""
    for version in ("9.8", "9.9", "9.10"):
        text = mended(f"since = {version.replace('.', '')}")
        sent.write(f"pull-requests/{COUNT}/change@{version}.patch", text)
    [request] = send(sent, COUNT).requests
    assert names(sent, request.branch) == [fakes.RUNNER, TEST]
    made = git(sent, "show", f"{request.branch}:{fakes.RUNNER}")
    assert "since = 99\n" in made and "added_step" not in made


def test_a_text_of_its_own_edits_upstreams_tests_where_the_base_has_them(sent):
    edits = [f"test/registered/unit/test_{name}.py" for name in ("old", "unknown")]
    text = mended("since = 9") + "".join(fakes.diff(name, "a = 1\n", "a = 2\n") for name in edits)
    sent.write(f"pull-requests/{COUNT}/change@9.9.patch", text)
    sent.write(f"../sglang/{edits[0]}", "a = 1\n")
    commit(sent)
    assert names(sent, send(sent, COUNT).requests[0].branch) == [fakes.RUNNER, edits[0], TEST]


@pytest.mark.parametrize("line", ["step_91", ""])
def test_a_text_of_its_own_that_does_not_fit_is_named(sent, line):
    name = f"pull-requests/{COUNT}/change@9.9.patch"
    text = mended("x = 1").replace("step_19", line) if line else f"Variant-Of: {COUNT}.patch\n"
    sent.write(name, text)
    problem = refused(sent)
    assert problem.where.partition(":")[0] == name and (not line or problem.name == "conflict")


def test_what_a_later_upstream_has_and_what_does_not_fit_it(sent):
    ours = sent.write(f"pull-requests/{COUNT}/python/sglang/srt/cut.py", "ours = 1\n")
    problem = refused(sent)
    assert (problem.name, problem.where) == ("file-exists", "python/sglang/srt/cut.py")
    ours.unlink()
    commit(sent, runner="# new\n" + fakes.numbered(40))
    done = send(sent)
    made = git(sent, "show", f"{done.requests[0].tip}:{fakes.RUNNER}")
    assert not done.exact and "step_20 = 20\nadded_step = 20\n" in made
    commit(sent, cut=fakes.RELEASE["sglang/srt/cut.py"] + "\nsix = 6\n")
    git(sent, "branch", "-D", done.requests[0].branch)
    done = send(sent)
    assert done.merged == (CUT,) and parts(done.requests[0]) == [(COUNT, True)]
    commit(sent, runner=fakes.numbered(40, "other"))
    problem = refused(sent)
    assert problem.name == "conflict" and COUNT in problem.where and "hunk 1: line" in problem.what
    problem = refused(sent, "stpes")
    assert problem.name == "unknown-topic" and "steps" in problem.what and COUNT in problem.hint


def test_a_text_is_sent_as_it_is_written(sent):
    text = 'title = "[Fix] Count once more"\nbody = "## Motivation\\n\\nLate.\\n"\n'
    sent.write(f"pull-requests/{COUNT}/{WRITTEN}", text)
    [request] = send(sent, COUNT).requests
    assert request.draft.text.body == "## Motivation\n\nLate.\n"
    assert request.draft.title == "[Fix] Count once more"
    message = git(sent, "show", "--no-patch", "--format=%B", request.tip)
    assert message.startswith("[Fix] Count once more\n\nWhy: without it a user saw")


@pytest.mark.parametrize(
    ("text", "what"),
    [("body = 1\n", "Expected `str`"), (f"{WORDS}stready = true\n", "unknown field `stready`")],
)
def test_a_text_that_is_wrong_is_refused(sent, text, what):
    name = f"pull-requests/{COUNT}/{WRITTEN}"
    sent.write(name, text)
    problem = refused(sent, COUNT)
    assert (problem.name, problem.where) == ("bad-pull-request", name) and what in problem.what


def test_the_command_writes_title_and_text(sent, tmp_path, tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("backport", "--onto", "sglang", "--pull-requests")
    code, said, _ = tool(sent, *words)
    assert code == 0 and "prefill-graph/steps-count-once-more made" in said
    assert f"HEAD, at {git(sent, 'rev-parse', 'HEAD')[:12]}, is {fakes.TAG}" in said
    shown = re.match(r"next: `git -C \S+ (log -p \S+\.\.prefill-graph/\S+)`", said.splitlines()[-1])
    assert "Count the steps once more" in git(sent, *shown[1].split())
    written = sent.root / "dist/pull-requests/steps-count-once-more"
    assert sorted(file.name for file in written.iterdir()) == ["body.md", "title.txt"]
    assert "warning: steps/count-" in said
    assert tool(sent, *words, "nothing")[0] == 1
    fakes.git(tmp_path / "other", "init", "-q")
    fakes.git(tmp_path / "other", "commit", "--allow-empty", "-q", "-m", "nothing")
    code, _, err = tool(sent, "backport", "--onto", tmp_path / "other", "--pull-requests")
    assert code == 1 and "[no-sglang]" in err


RFC = "rfc.md"  # what is posted before a part of the drafts
CONFIGS = "moe/add-expert-configs"


def test_the_projects_own_additions_belong_to_pending_patches():
    """Each Pending patch of the newest pin has a draft. It and each draft without a patch bring a
    test upstream would take, and nothing else lies in pull-requests/ than the RFC."""
    newest, folder = pins.load(ROOT).all[-1], ROOT / pull_requests.FOLDER
    every = pull_requests.drafts(ROOT, load_queue(ROOT), newest)
    pending = {name for name, draft in every.items() if draft.is_pending}
    there = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    files = [path for path in there if path.is_file() and path != folder / RFC]
    names = {file: file.relative_to(folder).as_posix().split("/", 2) for file in files}
    assert {"/".join(name[:2]) for name in names.values()} == pending
    assert all(every[name].text.body for name in pending)
    tests = {file: name for file, name in names.items() if name[2].startswith("test/")}
    edits = [name for file, name in names.items() if "\n+++ b/test/" in file.read_text()]
    tested = {"/".join(name[:2]) for name in [*tests.values(), *edits]}
    assert tested == pending - {CONFIGS}, "configs alone bring no code"
    for file, (_, _, inner) in tests.items():
        text = file.read_text()
        assert inner.startswith("test/registered/unit/") and "register_cpu_ci(" in text
        assert "(CustomTestCase)" in text or "pytest.main(" in text


# what knows releases in the overlay, and need not upstream
OTHERWISE = {"OwnMemory", "_spans_of"}


def unwrapped(tree: ast.Module) -> ast.Module:
    """The same code with each string in one line: upstream's docstrings have other widths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return tree


BROUGHT = {file.stem: file for file in (ROOT / "pull-requests").rglob("python/**/[!_]*.py")}


# what captures on the static tables that upstream has, and the overlay does on its own
ON_TABLES_OF_UPSTREAM = {"ssd_varlen", "mamba2_prefill_graph", "gdn_prefill_graph"}


@pytest.mark.parametrize("name", sorted(BROUGHT.keys() - ON_TABLES_OF_UPSTREAM))
def test_what_takes_the_overlays_place_is_the_overlays_own(name):
    """So that a repair of the one is not forgotten in the other."""
    [overlay] = (ROOT / "overlay").rglob(f"{name}.py")
    bodies = (unwrapped(ast.parse(path.read_text())).body for path in (overlay, BROUGHT[name]))
    named = ([node for node in body if hasattr(node, "name")] for body in bodies)
    ours, theirs = ({node.name: ast.dump(node) for node in body} for body in named)
    assert {name for name in theirs if theirs[name] != ours.get(name)} <= OTHERWISE


def test_configs_of_experts_are_the_overlays_own():
    configs = [*(ROOT / "pull-requests" / CONFIGS).rglob("*.json")]
    assert configs
    for file in configs:
        [overlay] = (ROOT / "overlay").rglob(file.name.replace("E=513,", "E=512,"))  # it is fused
        assert file.read_bytes() == overlay.read_bytes()
