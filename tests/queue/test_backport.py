"""The queue as commits on a user's checkout: the right trees, the same hashes, and nothing of the
user's touched."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

from patchqueue.commands import cli
from patchqueue.files.tree import LAID, LISTING, hash_python, list_folder, python_part
from patchqueue.handover import backport
from patchqueue.handover.repository import open_repository
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue import imports, lint
from patchqueue.queue.series import PROVENANCE
from patchqueue.upstream import pins

BRANCH = "release/graphs"
ROOT = Path(__file__).resolve().parents[2]
RUNNER = fakes.RUNNER


@pytest.fixture
def author(tmp_path: Path) -> None:
    (tmp_path / "home/.gitconfig").write_text(
        "[user]\n\tname = Ada Löv\n\temail = ada@example.org\n[commit]\n\tgpgSign ="
        " true\n[core]\n\tautocrlf = true\n[diff]\n\tnoprefix = true\n[format]\n\tattach = true\n"
    )


@pytest.fixture
def checkout(project: fakes.Project, tmp_path: Path, author: None) -> Path:
    """The release as git has it: no generated file, and folders that no wheel has."""
    folder = tmp_path / "sglang"
    for name, content in {
        "README.md": "SGLang\n",
        "test/srt/test_a.py": "a = 1\n",
        "python/pyproject.toml": "[project]\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return project.checkout(folder)


def make(
    project: fakes.Project, checkout: Path, branch: str = BRANCH, base: str = "HEAD", **options
) -> backport.Branch:
    return backport.backport(
        project.root, pins.load(project.root), str(checkout), branch, base, **options
    )


def refusal(project: fakes.Project, checkout: Path, *words: str, **options):
    refs = git(checkout, "for-each-ref")
    with pytest.raises(Refused) as refused:
        make(project, checkout, *words, **options)
    assert git(checkout, "for-each-ref") == refs, "no branch was made"
    [problem] = refused.value.problems
    assert problem.hint, "every refusal says what to type next"
    return problem


def git(folder: Path, *words: str) -> str:
    """git as the user has it."""
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_one_commit_for_each_patch_with_its_overlay_files(project, checkout):
    made = make(project, checkout)
    assert (made.outcome, made.pin.tag) == (Outcome.APPLIED, fakes.TAG)
    names = [
        git(checkout, "diff-tree", "-r", "--no-commit-id", "--name-only", commit).split()
        for commit in made.commits
    ]
    assert names == [[RUNNER, "python/sglang/srt/steps/__init__.py"], ["python/sglang/srt/cut.py"]]
    assert (
        git(checkout, "rev-parse", BRANCH, f"{BRANCH}~2")
        == f"{made.commits[-1]}\n{git(checkout, 'rev-parse', 'HEAD')}"
    )


def test_the_tree_is_the_one_that_apply_makes(project, checkout, tmp_path):
    make(project, checkout)
    project.apply()
    git(
        checkout,
        "-c",
        "core.autocrlf=false",
        "worktree",
        "add",
        "-q",
        str(tmp_path / "tree"),
        BRANCH,
    )
    assert python_part(list_folder(tmp_path / "tree")) == python_part(list_folder(project.tree))
    assert (tmp_path / "tree/README.md").is_file() and (
        tmp_path / "tree/test/srt/test_a.py"
    ).is_file()


def test_the_report_is_left_out_unless_it_is_asked_for(project, checkout):
    name, page = "prefill-graph/log-tree.patch", "python/sglang/srt/page.py"
    text = fakes.patch_text(page, "fifth = 5\nsixth = 6\n", "sixth = 6\n", Subject="Log it all")
    project.write(f"patches/{name}", text)
    project.edit("series", "# order\n", f"# order\n{name} # ==9.9.1\n")
    short = make(project, checkout)
    words = ["--root", str(project.root), "backport", "--onto", str(checkout), "long", "--report"]
    assert cli.main(words) == 0
    log = git(checkout, "log", "--reverse", "--format=%s", f"{fakes.TAG}..long").splitlines()
    assert log == ["Log it all", *short.subjects]


@pytest.mark.parametrize("tag", ["v0.5.9", "v0.5.12.post1", "v0.5.15.post1"])
def test_a_branch_has_small_fixes_first_and_the_report_last(tag):
    """Who reads the first commits finds what can be cherry-picked alone."""
    queue, pin = load_queue(ROOT), pins.load(ROOT).find(tag)
    patches = queue.select(pin.version)
    assert [queue.base(one.name)[:-6] for one in patches[-3:]] == [*backport.REPORT]
    fixes = ["fixes" in queue.header(patch.name).profiles for patch in patches[:-3]]
    assert fixes == sorted(fixes, reverse=True)
    assert sum(map(len, queue.overlay_for(patches[:10]).values())) < 12_000, "bytes of modules"


def test_the_record_of_the_overlay_package_comes_with_the_last_commit(project, checkout):
    project.write("overlay/python/sglang/srt/prefill_graph/__init__.py", '"""The package."""\n')
    project.edit(
        "patches/steps/count-once-more.patch",
        "Overlay: python/sglang/srt/steps/",
        "Overlay: python/sglang/srt/steps/, python/sglang/srt/prefill_graph/",
    )
    made = make(project, checkout)
    has = [
        PROVENANCE in git(checkout, "ls-tree", "-r", "--name-only", commit).split()
        for commit in made.commits
    ]
    assert has == [False, True]


@pytest.fixture
def packaged(project, checkout, tmp_path) -> Path:
    """A branch with the overlay's own package, checked out."""
    package = "overlay/python/sglang/srt/prefill_graph"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / package, project.root / package, ignore=ignored)
    project.edit(
        "patches/steps/count-once-more.patch",
        "Overlay: python/sglang/srt/steps/",
        "Overlay: python/sglang/srt/steps/, python/sglang/srt/prefill_graph/",
    )
    project.write("tests/revision/test_all.py", "")
    make(project, checkout)
    words = ("-c", "core.autocrlf=false", "worktree", "add", "-q", str(tmp_path / "tree"), BRANCH)
    git(checkout, *words)
    return tmp_path / "tree"


def test_a_branch_lists_the_queues_files_and_one_hash_of_the_rest(project, checkout, packaged):
    last, before = (
        git(checkout, "ls-tree", "-r", "--name-only", one).split()
        for one in (BRANCH, f"{BRANCH}~1")
    )
    assert LISTING in last and LISTING not in before and LAID in last and LAID not in before
    rows = (packaged / LISTING).read_text().splitlines()
    listed = {row.split("  ", 1)[1] for row in rows}
    changed = set(git(checkout, "diff", "--name-only", f"{BRANCH}~2", BRANCH).split())
    assert listed == {path for path in changed if path not in (LISTING, LAID)}
    whole = {
        path: digest
        for path, digest in list_folder(packaged).items()
        if path.startswith("python/sglang/")
    }
    about = json.loads((packaged / LAID).read_text())
    assert about["tree"] == hash_python(whole), "as a wheel's and a work tree's"
    rest = {path for path in whole if path.endswith(".py") and path not in listed}
    assert about["rest"]["files"] == len(rest) > 0


def verified(tree: Path) -> tuple[int, str]:
    folder = tree / "python/sglang/srt/prefill_graph"
    done = subprocess.run([sys.executable, folder, "--verify"], capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_branch_verifies_itself(packaged):
    count = len(python_part(list_folder(packaged))) + 1  # and its provenance.json
    code, said = verified(packaged)
    assert (code, f"{count} files are as the queue made them" in said) == (0, True)
    whole = {
        path: digest
        for path, digest in list_folder(packaged).items()
        if path.startswith("python/sglang/")
    }
    assert f"tree: {hash_python(whole)}\n" in said


def test_a_branch_tells_edits_of_others_from_the_queues(packaged):
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


def test_a_patch_can_be_left_out_with_what_it_alone_needs(project, checkout):
    wishes = backport.Wishes(without=("steps/count-once-more",))
    made = make(project, checkout, wishes=wishes)
    assert made.subjects == ("Count the steps once more",), "the fake's header is the same"
    changed = git(checkout, "diff", "--name-only", made.base, BRANCH).split()
    assert changed == ["python/sglang/srt/cut.py"], "no overlay file, no runner"


@pytest.mark.parametrize(
    ("without", "name", "hint"),
    [
        (("steps/count-once",), "unknown-patch", "did you mean steps/count-once-more? "),
        (("mamba2/scan",), "unknown-patch", "`scripts/nox apply v9.9.1 --verbose` lists"),
        (("steps/count-once-more",), "needed-patch", "--without steps/name-the-cut"),
        (("steps/count-once-more", "steps/name-the-cut"), "nothing-to-do", "leave fewer out"),
    ],
)
def test_what_cannot_be_left_out_is_said(project, checkout, without, name, hint):
    project.edit(
        "patches/steps/name-the-cut.patch",
        "Overlay: none",
        "Overlay: none\nNeeds: steps/count-once-more.patch",
    )
    problem = refusal(project, checkout, wishes=backport.Wishes(without=without))
    assert problem.name == name and hint in problem.hint


def test_the_words_of_the_command(project, checkout):
    words = ["--root", str(project.root), "backport", "--onto", str(checkout), "mine"]
    assert cli.main([*words, "--without", "steps/count-once-more"]) == 0
    text = git(checkout, "log", "--format=%B", f"{fakes.TAG}..mine")
    assert text.count("Queue-Patch: ") == 1


@pytest.mark.parametrize("tag", ["v0.5.9", "v0.5.23"])
def test_what_is_laid_without_any_patch_can_still_import_the_rest(tag):
    """Every module of the package that a laid file or a laid line imports is laid."""
    queue, pin = load_queue(ROOT), pins.load(ROOT).find(tag)
    every = {path for path in queue.overlay if path.endswith(".py")}
    for left in queue.select(pin.version):
        stem = queue.base(left.name).removesuffix(".patch")
        needy = [
            queue.base(patch.name).removesuffix(".patch")
            for patch in queue.select(pin.version)
            if queue.base(left.name) in queue.header(patch.name).needs
        ]
        selection = backport.selected(queue, pin, (stem, *needy))
        laid = selection.overlay.keys()
        wanted = {one for path in laid for one in imports.of_file(path, selection.overlay[path])}
        wanted |= {one for patch in selection.patches for one in lint.called(patch)}
        assert wanted & every <= laid


def test_message_and_trailers(project, checkout):
    made = make(project, checkout)
    text = git(checkout, "show", "--no-patch", "--format=%an <%ae> %cn%n%B", made.commits[0])
    assert text.startswith(
        "Ada Löv <ada@example.org> Ada Löv\nCount the steps once more\n\nWhy: without it a user saw"
        " too few steps.\n\nQueue-Patch: steps/count-once-more.patch\n"
    )
    trailers = dict(
        line.split(": ", 1)
        for line in git(
            checkout, "show", "--no-patch", "--format=%(trailers)", made.commits[0]
        ).splitlines()
        if line
    )
    assert trailers.keys() == {
        "Queue-Patch",
        "Queue-Patch-Sha256",
        "Queue-Release",
        "Origin",
        "Upstream-Status",
    }
    assert (
        trailers["Queue-Release"] == f"9.9.1+{fakes.LABEL}"
        and trailers["Upstream-Status"] == "Pending"
    )


def test_the_same_hashes_again_whatever_the_users_settings(
    project, checkout, tmp_path, monkeypatch
):
    first = make(project, checkout)
    again = make(project, checkout)
    assert (again.outcome, again.commits) == (Outcome.ALREADY_APPLIED, first.commits)
    (tmp_path / "home/.gitconfig").write_text(
        "[user]\n\tname = Ada Löv\n\temail = ada@example.org\n[i18n]\n\tcommitEncoding ="
        " ISO-8859-1\n"
    )
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
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-q", "--amend", "--no-edit")
    base = int(git(checkout, "show", "--no-patch", "--format=%ct", "HEAD"))
    day = int(
        datetime.datetime.combine(
            project.pin.released, datetime.time(), datetime.timezone.utc
        ).timestamp()
    )
    made = make(project, checkout)
    assert set(git(checkout, "show", "--no-patch", "--format=%at %ct", *made.commits).split()) == {
        str(max(base, day))
    }


def test_what_is_checked_out_is_left_alone(project, checkout):
    # a file that git does not know is nobody's business
    (checkout / "notes.txt").write_text("mine")
    before = {
        name: value for name, value in fakes.snapshot(checkout).items() if "/.git/" not in name
    }
    state = [(checkout / ".git" / name).read_bytes() for name in ("HEAD", "index")]
    make(project, checkout)
    assert {
        name: value for name, value in fakes.snapshot(checkout).items() if "/.git/" not in name
    } == before
    assert [(checkout / ".git" / name).read_bytes() for name in ("HEAD", "index")] == state


def test_a_bare_repository_and_a_folder_inside_of_a_checkout_will_do(project, checkout, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(checkout), "bare.git")
    inside = make(project, checkout / "python/sglang").commits
    assert make(project, tmp_path / "bare.git").commits == inside
    assert make(project, tmp_path / "bare.git", "by-tag", fakes.TAG).commits == inside


def test_modes_of_changed_files_stay(project, checkout):
    git(checkout, "update-index", "--chmod=+x", RUNNER)
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-q", "-m", "a program")
    git(checkout, "checkout", "-q", "--", ".")
    made = make(project, checkout)
    assert git(checkout, "ls-tree", made.commits[-1], RUNNER).startswith("100755")


def test_a_branch_of_the_users_is_never_moved(project, checkout):
    git(checkout, "branch", BRANCH)
    problem = refusal(project, checkout)
    assert (
        problem.name == "branch-exists"
        and "name another branch" in problem.hint
        and "-D" not in problem.hint
    )


def test_a_branch_is_not_named_as_a_tag_or_as_a_reference(project, checkout):
    """git would not know any more which of the two `git checkout v9.9.1` means."""
    git(checkout, "tag", "v1.0", "HEAD")
    for name in ("v1.0", "refs/heads/x"):
        assert refusal(project, checkout, name).name == "bad-branch"


def test_the_repositorys_own_settings_run_nothing_and_change_nothing(project, checkout, tmp_path):
    first = make(project, checkout)
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(checkout, "config", "core.fsmonitor", str(hook))
    assert make(project, checkout).commits == first.commits and not (tmp_path / "ran").exists()


def test_what_git_itself_refuses_is_one_sentence(project, checkout, capsys):
    git(checkout, "config", "user.name", "<>")
    words = ["--root", str(project.root), "backport", "--onto", str(checkout), BRANCH]
    assert (
        cli.main(words) == 1
        and "Traceback" not in (said := capsys.readouterr().err)
        and "disallowed characters" in said
    )


def test_edits_do_not_matter_where_the_commit_is_named(project, checkout):
    (checkout / RUNNER).write_text("step = 2\n")
    head = git(checkout, "rev-parse", "HEAD").strip()
    problem = refusal(project, checkout)
    assert (
        "the branch would begin at HEAD, which lacks them" in problem.what
        and problem.hint.endswith(f"--base {head[:12]}")
    )
    assert make(project, checkout, base=head[:12]).base == head, "what the refusal says to type"
    assert make(project, checkout, base=fakes.TAG).outcome is Outcome.ALREADY_APPLIED
    assert (checkout / RUNNER).read_text() == "step = 2\n"


@pytest.mark.parametrize("missing", ["name", "email"])
def test_nobodys_commits_are_not_made(project, checkout, tmp_path, missing):
    git(checkout, "config", "--global", "--unset", f"user.{missing}")
    problem = refusal(project, checkout)
    assert problem.name == "no-identity" and f"git config --global user.{missing}" in problem.hint


def test_a_fork_whose_lines_do_not_fit_is_refused_by_them(project, checkout):
    (checkout / RUNNER).write_text("step = 2\n")
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-qam", "ours")
    problem = refusal(project, checkout)
    assert problem.name == "conflict" and "line 1 reads 'step = 2'" in problem.what
    assert problem.hint.startswith(f"`scripts/nox backport --onto {checkout} --base {fakes.TAG}")
    assert make(project, checkout, base=fakes.TAG).outcome is Outcome.APPLIED


def test_without_tags_the_release_is_still_known_by_its_tree(project, checkout):
    git(checkout, "tag", "-d", fakes.TAG)
    assert make(project, checkout).pin.tag == fakes.TAG
    (checkout / RUNNER).write_text("step = 2\n")
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-qam", "ours")
    assert "fetch --tags" in refusal(project, checkout, "other").hint


def test_a_file_that_no_release_has_is_an_edit_of_others(project, checkout):
    (checkout / "python/sglang/more.py").write_text("")
    git(checkout, "add", "-A")
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-qm", "ours")
    assert make(project, checkout).edits.added == ("python/sglang/more.py",)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((BRANCH, "nowhere"), "no-commit"),
        (("no..branch",), "bad-branch"),
        ((BRANCH, "--all"), "no-commit"),
        (("main/x",), "bad-branch"),
    ],
)
def test_bad_words(project, checkout, words, name):
    assert refusal(project, checkout, *words).name == name


def test_what_is_no_repository_is_refused(project, tmp_path, author):
    for folder in (tmp_path / "wheels", tmp_path / "nowhere"):
        with pytest.raises(Refused, match="no-repository"):
            make(project, folder)


def test_the_command_says_what_it_did(project, checkout, capsys):
    words = ["--root", str(project.root), "backport", "--onto", str(checkout), BRANCH]
    assert cli.main(words) == 0
    assert f"{BRANCH} made, at " in capsys.readouterr().out
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == f"next: `git -C {checkout} switch {BRANCH}`"
    assert cli.main([*words[:-1], "no..branch"]) == 1
    assert "next: " in capsys.readouterr().err


def test_every_header_makes_a_message_that_git_reads_back():
    """The project's own queue: trailers are found, and nothing in a description ends a mail."""
    queue, last = load_queue(ROOT), {}
    for pin in pins.load(ROOT).all:
        last |= {patch.name: (patch, pin) for patch in queue.select(pin.version)}
    for patch, pin in last.values():
        text = backport.message(queue, patch, pin)
        done = subprocess.run(
            ["git", "interpret-trailers", "--parse"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        first, _, _, origin, status = done.stdout.splitlines()
        assert first == f"Queue-Patch: {patch.name}", text
        assert not any(
            line.startswith(("---", "diff -", "Index: ")) for line in text.splitlines()
        ), text
        assert "Merged" not in status or status.endswith(origin.partition("upstream, ")[2])


def test_a_repository_is_read_as_it_is_committed(project, checkout):
    repository = open_repository(str(checkout))
    commit = repository.commit("HEAD")
    assert (
        repository.read(commit, "python/sglang/srt/cut.py").decode()
        == fakes.RELEASE["sglang/srt/cut.py"]
    )
    assert (
        repository.read(commit, "python/sglang") is None
        and repository.read(commit, "nothing") is None
    )
    (checkout / "link").symlink_to("README.md")
    git(checkout, "add", "link")
    git(checkout, "-c", "commit.gpgSign=false", "commit", "-qm", "link")
    assert repository.read(repository.commit("HEAD"), "link") is None
