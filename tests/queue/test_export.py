"""Pull requests from patches that are Pending: their branches, files, form, text and mails."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import fakes
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from evidence import pulls, store
from evidence.commands import cli
from patchqueue.files import run
from patchqueue.handover import export, formatting, prbody, prtest
from patchqueue.laying.apply import load_queue
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue import header
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]
TEST = "test/registered/unit/test_steps.py"
COUNT, CUT = "steps/count-once-more", "steps/name-the-cut"


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
    for name, value in tools.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home/.gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    shutil.copy(ROOT / "upstream/format.toml", project.root / "upstream/format.toml")
    project.edit("upstream/format.toml", ">=0.5.19", ">=9")
    project.write(f"pull-requests/{COUNT}/{TEST}", '"""Steps."""\n\nassert 1\n')
    project.checkout(tmp_path / "sglang")
    return project


def send(project: fakes.Project, *words: str, base: str = "HEAD") -> export.Exported:
    return export.export(
        project.root, pins.load(project.root), str(project.root.parent / "sglang"), words, base
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
    text = prbody.body(load_queue(sent.root), done, done.requests[0], str)
    assert 'This stands on "Count the steps once more"' in text.replace("\n", " ")


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
    sent.write(
        f"pull-requests/{COUNT}/{TEST}", "from sglang import b\nimport os\nprint(os,   b, 'x')\n"
    )
    done = send(sent)
    assert (
        git(sent, "show", f"{done.requests[0].tip}:{TEST}")
        == 'import os\n\nfrom sglang import b\n\nprint(os, b, "x")\n'
    )
    assert done.tidied == (TEST,)


def test_what_upstreams_linters_refuse_is_refused(sent):
    sent.write(f"pull-requests/{COUNT}/{TEST}", "import os\n\nprint(teh)  # teh\n")
    problem = refused(sent)
    assert problem.name == "upstream-lint" and "F401" in problem.what


def test_what_upstream_itself_has_in_another_form_is_left(sent):
    commit(sent, runner=fakes.numbered(40) + "odd = 'quoted'\n")
    [request] = send(sent).requests
    assert "odd = 'quoted'" in git(sent, "show", f"{request.tip}:{fakes.RUNNER}")


def test_on_a_later_upstream_hunks_are_laid_where_their_text_stands(sent):
    commit(sent, runner="# new\n" + fakes.numbered(40))
    done = send(sent)
    assert not done.exact and done.requests[0].parts[0].row.outcome is Outcome.NEEDS_REFRESH
    assert "step_20 = 20\nadded_step = 20\n" in git(
        sent, "show", f"{done.requests[0].tip}:{fakes.RUNNER}"
    )


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
    path = sent.root.parent / "sglang" / TEST
    path.parent.mkdir(parents=True)
    path.write_text("upstream = 1\n")
    commit(sent)
    assert (refused(sent).name, refused(sent).where) == ("file-exists", TEST)


def test_an_unknown_topic_is_answered_with_those_there_are(sent):
    problem = refused(sent, "stpes")
    assert problem.name == "unknown-topic" and "steps" in problem.what and COUNT in problem.hint


def test_where_one_branch_is_the_users_none_is_made(sent):
    git(sent, "branch", "prefill-graph/steps-name-the-cut")
    assert refused(sent, COUNT, CUT).name == "branch-exists"


def test_git_am_of_the_mails_gives_the_same_commits(sent, tmp_path):
    [request] = send(sent).requests
    files = export.write(request, "text", tmp_path / "out")
    assert [file.name[:4] for file in files] == ["body", "0001", "0002"]
    git(sent, "clone", "-q", "--no-checkout", ".", str(tmp_path / "clone"))
    for words in (
        ("checkout", "-q", request.base),
        ("am", "-q", "--committer-date-is-author-date", *map(str, files[1:])),
    ):
        subprocess.run(["git", *words], cwd=tmp_path / "clone", check=True)
    assert (
        subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=tmp_path / "clone", capture_output=True, text=True
        ).stdout.strip()
        == request.tip
    )


def test_the_text_has_upstreams_sections_and_claims_nothing(sent):
    done = send(sent)
    queue = load_queue(sent.root)
    text = prbody.body(queue, done, done.requests[0], partial(pulls.on_gpus, sent.root))
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Motivation",
        "## Modifications",
        "## How it was tested",
        "## Benchmark",
    ]
    for said in (
        f"pytest {TEST}",
        "They were not run for this text.",
        "It was not run on a GPU.",
        "Not measured: ",
        f"- `{TEST}`: new tests, 3 lines",
    ):
        assert said in text
    tried = [prtest.Tried(TEST, COUNT, True, True, ("1 passed", "1 failed"))]
    assert "| `test_steps.py` | 1 passed | 1 failed |" in prbody.body(
        queue, done, done.requests[0], partial(pulls.on_gpus, sent.root), tried
    )


def test_the_command_writes_text_and_mails(sent, tmp_path, capsys):
    words = [
        "--root",
        str(sent.root),
        "export",
        "--onto",
        str(tmp_path / "sglang"),
        "--out",
        str(tmp_path / "out"),
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
    ]
    assert cli.main([*words, "nothing"]) == 1


def test_a_repository_of_something_else_is_named(sent, tmp_path, capsys):
    fakes.git(tmp_path / "other", "init", "-q")
    fakes.git(tmp_path / "other", "commit", "--allow-empty", "-q", "-m", "nothing")
    assert cli.main(["--root", str(sent.root), "export", "--onto", str(tmp_path / "other")]) == 1
    assert "holds no python/sglang at HEAD [no-sglang]" in capsys.readouterr().err


def test_the_projects_own_additions_belong_to_pending_patches():
    """Each Pending patch of the newest pin brings a test upstream would take, and nothing else lies
    in pull-requests/."""
    queue, newest = load_queue(ROOT), pins.load(ROOT).all[-1]
    pending = {
        queue.base(patch.name).removesuffix(".patch")
        for patch in queue.select(newest.version)
        if queue.header(patch.name).get("Upstream-Status") == "Pending"
    }
    files = [
        path.relative_to(ROOT / export.ADDITIONS).as_posix()
        for path in (ROOT / export.ADDITIONS).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {"/".join(name.split("/")[:2]) for name in files} == pending
    tests = {name for name in files if name.split("/")[2] == "test"}
    assert {"/".join(name.split("/")[:2]) for name in tests} == pending
    for name in tests:
        text = (ROOT / export.ADDITIONS / name).read_text()
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


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / export.ADDITIONS).rglob("python/**/[!_]*.py")),
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
        assert formatting.rules(ROOT, pin.version).formatter.startswith(
            "ruff" if pin.version >= Version("0.5.19") else "black"
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


@pytest.mark.parametrize(
    ("patches", "mode", "shown"),
    [
        (["breakable/keep-break-tensors"], "breakable", True),
        (["breakable/keep-break-tensors"], "piecewise-inductor", False),
        (["piecewise/zero-rows"], "piecewise-inductor", True),
        (["breakable/a", "nemotron-h/b"], "piecewise", True),
    ],
)
def test_a_pull_request_tells_of_runs_that_it_can_matter_to(patches, mode, shown):
    assert pulls.touches(patches, mode) is shown


def test_subtests_are_counted_apart():
    assert prtest.COUNTED.findall("= 1 passed, 2 subtests passed in 1.0s =") == [
        "1 passed",
        "2 subtests passed",
    ]


def test_a_pull_request_tells_what_gpus_found(tmp_path):
    """Of a file that several hosts wrote, the runs about the queue that its patches are of."""
    runs = [
        {"model": model, "mode": mode, "verdict": verdict, "host": host}
        for model, mode, verdict, host in (
            ("llama", "breakable", "passed", {}),
            ("glm-5", "breakable", "failed", {}),
            ("old", "breakable", "passed", {"changes": "sha256:before"}),
            ("llama", "piecewise", "passed", {}),
            ("llama", "reference", "passed", {}),
        )
    ]
    torch = {"version": "2.9.1+cu129", "pinned": "2.9.1", "off_pin": False}
    found = {"schema": 1, "version": "0.5.11", "queue": "q", "changes": "c", "tree": "t"}
    found |= {"tree_untouched": True, "gpu": {"name": "H200"}, "torch": torch, "runs": runs}
    names = ("breakable/keep@0.5.10.patch", "moe/other.patch")
    found["patches"] = [{"name": name} for name in names]
    store.put(tmp_path / "evidence/0.5.11/h200.json", json.dumps(found))
    told = pulls.on_gpus(tmp_path, ["breakable/keep", "breakable/absent"]).splitlines()
    assert told[-1] == "| 0.5.11 | keep | H200 with torch 2.9.1 | breakable | llama | glm-5 |"
    assert [line for line in told if "piecewise" in line] == []
    assert pulls.on_gpus(tmp_path, ["breakable/absent"]) == "It was not run on a GPU."
