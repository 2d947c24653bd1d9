"""The queue as commits on a user's checkout: right trees, the same hashes, no more."""

import datetime
import os
import re
import sys
from pathlib import Path

import fakes
import pytest
from fakes import ROOT, git, unchanged

from patchqueue.applying.apply import load_queue
from patchqueue.files.tree import hash_python, list_folder, list_package, python_part
from patchqueue.handover import backport
from patchqueue.outcome import Outcome
from patchqueue.upstream import pins

BRANCH = "release/graphs"
RUNNER = fakes.RUNNER
LISTED = ("diff-tree", "-r", "--no-commit-id", "--name-only")
UNSIGNED = ("-c", "commit.gpgSign=false", "commit", "-q")


@pytest.fixture
def author(tmp_path: Path) -> None:
    (tmp_path / "home/.gitconfig").write_text(
        "[user]\n\tname = Ada Löv\n\temail = ada@example.org\n[commit]\n\tgpgSign ="
        " true\n[core]\n\tautocrlf = true\n[diff]\n\tnoprefix = true\n[column]\n\tui = always\n"
    )


@pytest.fixture
def checkout(project: fakes.Project, tmp_path: Path, author: None) -> Path:
    """The release as git has it: no generated file, and folders that no wheel has."""
    for name in ("README.md", "test/srt/test_a.py", "python/pyproject.toml"):
        project.write(tmp_path / "sglang" / name, "SGLang = 1\n")
    folder = project.checkout(tmp_path / "sglang")
    git(folder, "tag", "nightly")
    return folder


def make(
    project: fakes.Project, checkout: Path, branch: str = BRANCH, base: str = "HEAD", **options
) -> backport.Branch:
    return backport.backport(project.root, str(checkout), branch, base, **options)


def refusal(project: fakes.Project, checkout: Path, *words: str, **options):
    refs = git(checkout, "for-each-ref")
    problem = fakes.problem_of(make, project, checkout, *words, **options)
    assert git(checkout, "for-each-ref") == refs, "no branch was made"
    assert problem.hint, "every refusal says what to type next"
    return problem


def forked(checkout: Path, file: str = RUNNER) -> None:
    """Commit an edit, by default of a line that the queue changes."""
    (checkout / file).write_text("step = 2\n")
    git(checkout, "commit", "-q", "-am", "ours")


def worktree(checkout: Path, folder: Path) -> Path:
    """Check the branch out."""
    git(checkout, "-c", "core.autocrlf=false", "worktree", "add", "-q", str(folder), BRANCH)
    return folder


def test_one_commit_for_each_patch_and_what_is_checked_out_is_left_alone(
    project, checkout, tmp_path
):
    # a file that git does not know is nobody's business
    (checkout / "notes.txt").write_text("mine")
    own = [path for path in checkout.iterdir() if path.name != ".git"]
    with unchanged(*own, checkout / ".git/HEAD", checkout / ".git/index"):
        made = make(project, checkout)
    assert (made.outcome, made.pin.tag) == (Outcome.APPLIED, fakes.TAG)
    names = [git(checkout, *LISTED, commit).split() for commit in made.commits]
    alone = make(project, checkout, "alone", without=("steps/count-once-more",))
    changed = git(checkout, "diff", "--name-only", alone.base, "alone").split()
    assert changed == ["python/sglang/srt/cut.py"], "no overlay file, no runner"
    assert names == [[RUNNER, "python/sglang/srt/steps/__init__.py"], ["python/sglang/srt/cut.py"]]
    ends = git(checkout, "rev-parse", BRANCH, f"{BRANCH}~2").split()
    assert ends == [made.commits[-1], git(checkout, "rev-parse", "HEAD").strip()]
    assert "refs/patchqueue" not in git(checkout, "for-each-ref"), "a name that git never saw"
    project.apply()
    tree = worktree(checkout, tmp_path / "tree")
    assert python_part(list_folder(tree)) == python_part(list_folder(project.tree))
    assert (tree / "README.md").is_file() and (tree / "test/srt/test_a.py").is_file()


def test_the_report_is_left_out_unless_it_is_asked_for(project, checkout, tool):
    name, lines = "prefill-graph/log-tree.patch", ("fifth = 5\nsixth = 6\n", "sixth = 6\n")
    text = fakes.patch_text("python/sglang/srt/page.py", *lines, Subject="Log it all")
    project.write(f"patches/{name}", text)
    project.edit("series", "# order\n", f"# order\n{name} # ==9.9.1\n")
    for words in (("short",), ("long", "--report")):
        assert tool(project, "backport", "--onto", checkout, *words)[0] == 0
        log = git(checkout, "log", "--format=%s", f"{fakes.TAG}..{words[0]}").splitlines()
        assert ("Log it all" in log) == (words[0] == "long") and len(log) == 1 + len(words)


@pytest.mark.parametrize("tag", ["v0.5.9", "v0.5.12.post1", "v0.5.15.post1"])
def test_a_branch_has_small_fixes_first_and_the_report_last(tag):
    queue = load_queue(ROOT)
    *patches, _, _, last = queue.select(pins.load(ROOT).find(tag).version)
    speed = ["fixes" not in queue.header(patch.name).profiles for patch in patches]
    brought = sum(map(len, queue.overlay_for(patches[:10]).values()))  # bytes
    assert speed == sorted(speed) and brought < 12_000 and "log-tree" in last.name


def test_tests_come_along_where_they_are_asked_for(project, checkout):
    project.edit(f"patches/{fakes.CUT}", "test_steps", "test_cut")
    files = [f"tests/revision/{name}.py" for name in ("conftest", "test_cut", "test_steps")]
    for file in files:
        project.write(file, "import test_cut\n")
    made = make(project, checkout, tests=True)
    names = [git(checkout, *LISTED, commit, "--", "tests/").split() for commit in made.commits]
    assert names == [[], [], files] and made.tree == make(project, checkout, "bare").tree
    make(project, checkout, "part", without=("steps/name-the-cut",), tests=True)
    assert git(checkout, *LISTED, "part").split() == files[:1]


@pytest.mark.parametrize("report", [True, False])
def test_tests_that_come_along_find_what_they_import(report):
    """Of the other tests, and of the overlay's report."""
    queue, places = load_queue(ROOT), ("revision/{}.py", "revision/{}/__init__.py", "gpu/{}.py")
    for pin in pins.load(ROOT).all:
        released = {patch.name for patch in queue.select(pin.version)}
        without = [stem for stem in backport.REPORT if f"{stem}.patch" in released]
        selection = backport.select(queue, pin, () if report else without)
        files = backport.tests_of(ROOT, selection).files
        words = re.findall(r"(?m)^(?:from|import) (\S+)", b"\n".join(files.values()).decode())
        wanted = {f"tests/{at.format(word.replace('.', '/'))}" for word in words for at in places}
        assert {path for path in wanted if (ROOT / path).is_file()} <= files.keys()
        tests = b"".join(files[path] for path in files if "/test_" in path).decode()
        asked = "from sglang.srt.prefill_graph.report import" in tests
        assert asked <= any("/report/" in path for path in selection.overlay)


@pytest.fixture
def packaged(project, checkout, tmp_path) -> Path:
    """A branch with the overlay's own package, checked out."""
    project.package()
    both = "Overlay: python/sglang/srt/steps/, python/sglang/srt/prefill_graph/"
    project.edit(f"patches/{fakes.COUNT}", "Overlay: python/sglang/srt/steps/", both)
    project.write("tests/revision/test_all.py", "")
    make(project, checkout)
    return worktree(checkout, tmp_path / "tree")


def verified(tree: Path) -> tuple[int, str]:
    folder = tree / "python/sglang/srt/prefill_graph"
    done = fakes.run(sys.executable, folder, "--verify")
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_branch_verifies_itself_and_tells_edits_of_others_from_the_queues(packaged):
    count = len(list_package(packaged / "python"))
    code, said = verified(packaged)
    assert (code, f"{count} files are as the queue made them" in said) == (0, True)
    assert f"tree: {hash_python(list_package(packaged / 'python'))}\n" in said
    ours, theirs = "srt/prefill_graph", "edits of others since then (1):"
    untold = "changed  sglang/… (files that the queue leaves alone)"
    for path, text, code, said in (
        ("srt/runner.py", "step = 2\n", 1, "changed  sglang/srt/runner.py"),
        (f"{ours}/compat/ops.py", "", 1, f"changed  sglang/{ours}/compat/ops.py"),
        (f"{ours}/more.py", "", 1, f"added    sglang/{ours}/more.py"),
        ("srt/page.py", "mine = 1\n", 0, theirs),
        ("srt/more.py", "", 0, theirs),
        ("srt/page.py", None, 0, untold),
        ("srt/cut.py", None, 1, "missing  sglang/srt/cut.py"),
    ):
        file = packaged / "python/sglang" / path
        before = file.read_bytes() if file.exists() else None
        file.unlink() if text is None else file.write_text(text)
        found = verified(packaged)
        assert found[0] == code and said in found[1], path
        file.unlink() if before is None else file.write_bytes(before)


@pytest.mark.parametrize(
    ("without", "name", "hint"),
    [
        (("steps/count-once",), "unknown-patch", "did you mean steps/count-once-more? "),
        (("mamba2/scan",), "unknown-patch", "docs/patches.md lists"),
        (("steps/count-once-more",), "needed-patch", "--without steps/name-the-cut"),
        (("steps/count-once-more", "steps/name-the-cut"), "nothing-to-do", "leave fewer out"),
    ],
)
def test_what_cannot_be_left_out_is_said(project, checkout, without, name, hint):
    needs = f"Overlay: none\nNeeds: {fakes.COUNT}"
    project.edit(f"patches/{fakes.CUT}", "Overlay: none", needs)
    problem = refusal(project, checkout, without=without)
    assert problem.name == name and hint in problem.hint


def test_message_and_trailers(project, checkout):
    show = ("show", "--no-patch", f"{make(project, checkout).commits[0]}")
    text = git(checkout, *show, "--format=%an <%ae> %cn%n%B")
    assert text.startswith(
        "Ada Löv <ada@example.org> Ada Löv\nCount the steps once more\n\nWhy: without it a user saw"
        f" too few steps.\n\nQueue-Patch: {fakes.COUNT}\n"
    )
    lines = git(checkout, *show, "--format=%(trailers)").splitlines()
    trailers = dict(line.split(": ", 1) for line in lines if line)
    digest = trailers.pop("Queue-Patch-Sha256")
    assert re.fullmatch("[0-9a-f]{64}", digest) and trailers == {
        "Queue-Patch": fakes.COUNT,
        "Queue-Release": f"9.9.1+{fakes.LABEL}",
        "Origin": "own",
        "Upstream-Status": "Pending",
    }


def test_the_same_hashes_again_whatever_a_users_settings(project, checkout, tmp_path, monkeypatch):
    first = make(project, checkout)
    again = make(project, checkout)
    assert (again.outcome, again.commits) == (Outcome.ALREADY_APPLIED, first.commits)
    user = "[user]\n\tname = Ada Löv\n\temail = ada@example.org\n"
    encoding = "[i18n]\n\tcommitEncoding = ISO-8859-1\n"
    (tmp_path / "home/.gitconfig").write_text(user + encoding)
    for name, value in {
        "GIT_AUTHOR_NAME": "Nobody",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_DIR": "/nowhere",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    assert make(project, checkout, "another").commits == first.commits


@pytest.mark.parametrize("when", ["2020-01-02T03:04:05Z", "2040-01-02T03:04:05Z"])
def test_commits_are_of_the_releases_day_and_never_older_than_their_base(
    project, checkout, monkeypatch, when
):
    monkeypatch.setenv("GIT_COMMITTER_DATE", when)
    git(checkout, "commit", "-q", "--amend", "--no-edit")
    base = int(git(checkout, "show", "--no-patch", "--format=%ct", "HEAD"))
    midnight = datetime.time(tzinfo=datetime.timezone.utc)
    day = int(datetime.datetime.combine(project.pin.released, midnight).timestamp())
    made = make(project, checkout)
    dates = git(checkout, "show", "--no-patch", "--format=%at %ct", *made.commits)
    assert set(dates.split()) == {str(max(base, day))}


def test_a_bare_repository_and_a_folder_inside_of_a_checkout_will_do(project, checkout, tmp_path):
    """And one without tags, by its tree; modes stay, and the repository's settings run nothing."""
    git(checkout, "update-index", "--chmod=+x", RUNNER)
    git(checkout, "commit", "-q", "-m", "a program")
    git(checkout, "checkout", "-q", "--", ".")
    git(checkout, "tag", "-f", fakes.TAG)
    git(tmp_path, "clone", "-q", "--bare", str(checkout), "bare.git")
    hook = fakes.program(tmp_path / "hook.sh", f"touch {tmp_path}/ran")
    git(checkout, "config", "core.fsmonitor", str(hook))
    inside = make(project, checkout / "python/sglang").commits
    assert not (tmp_path / "ran").exists()
    git(checkout, "config", "--unset", "core.fsmonitor")
    assert make(project, tmp_path / "bare.git").commits == inside
    assert make(project, tmp_path / "bare.git", "by-tag", fakes.TAG).commits == inside
    assert git(checkout, "ls-tree", inside[-1], RUNNER).startswith("100755")
    git(checkout, "tag", "-d", fakes.TAG)
    assert make(project, checkout).pin.tag == fakes.TAG
    forked(checkout)
    assert "fetch --tags" in refusal(project, checkout, "other").hint


def test_edits_do_not_matter_where_the_commit_is_named(project, checkout):
    (checkout / RUNNER).write_text("step = 2\n")
    head = git(checkout, "rev-parse", "HEAD").strip()
    problem = refusal(project, checkout)
    assert problem.name == "edited-checkout" and problem.hint.endswith(f"--base {head[:12]}")
    assert make(project, checkout, base=head[:12]).base == head, "what the refusal says to type"
    assert make(project, checkout, base=fakes.TAG).outcome is Outcome.ALREADY_APPLIED
    assert (checkout / RUNNER).read_text() == "step = 2\n"


@pytest.mark.parametrize("missing", ["name", "email"])
def test_nobodys_commits_are_not_made(project, checkout, tmp_path, missing):
    git(checkout, "config", "--global", "--unset", f"user.{missing}")
    problem = refusal(project, checkout)
    assert problem.name == "no-identity" and f"git config --global user.{missing}" in problem.hint
    for folder in ("wheels", "nowhere"):
        assert fakes.refused(make, project, tmp_path / folder)[0] == "no-repository"


@pytest.mark.parametrize(
    ("words", "name", "hint"),
    [
        ((BRANCH, "nowhere"), "no-commit", ""),
        ((BRANCH, "--all"), "no-commit", ""),
        (("no..branch",), "bad-branch", ""),
        (("main/x",), "bad-branch", ""),
        (("refs/heads/x",), "bad-branch", ""),
        # git would not know any more which of the two `git checkout v9.9.1` means
        ((fakes.TAG,), "bad-branch", ""),
        (("mine",), "branch-exists", "name another branch"),
    ],
)
def test_bad_words(project, checkout, words, name, hint):
    git(checkout, "branch", "mine")
    problem = refusal(project, checkout, *words)
    assert problem.name == name and hint in problem.hint and "-D" not in problem.hint


def test_every_header_makes_a_message_that_git_reads_back():
    """The project's own queue: trailers are found, and nothing in a description ends a mail."""
    queue, last, utf_8 = load_queue(ROOT), {}, {**os.environ, "LC_ALL": "C.UTF-8"}
    for pin in pins.load(ROOT).all:
        last |= {patch.name: (patch, pin) for patch in queue.select(pin.version)}
    for patch, pin in last.values():
        text = backport.message(queue, patch, pin)
        words = ("git", "interpret-trailers", "--parse")
        found = fakes.run(*words, input=text, check=True, env=utf_8).stdout.splitlines()
        assert found[0] == f"Queue-Patch: {patch.name}" and len(found) == 5, text
        assert not re.search("(?m)^(---|diff -|Index: )", text), text
        assert "Merged" not in found[4] or found[4].endswith(found[3].partition("upstream, ")[2])
