"""The command line: exit codes, help, options, hints; errors say where and what next."""

import argparse
import json
import logging
import re
import shutil
import sys
from functools import partial

import fakes
import pytest
from fakes import COUNT, CUT, ROOT, RUNNER, TAG, unchanged

from bundle import assemble, host, release
from evidence import commands as proving
from evidence import results
from evidence.pages import bench, status
from patchqueue import __main__ as program
from patchqueue import commands as cli
from patchqueue.commands import trees
from patchqueue.commands.terminal import show_problems
from patchqueue.files import atomic
from patchqueue.install import inplace, undo
from patchqueue.outcome import Problem, to_type


@pytest.fixture
def run(applied, tool):
    """Run one command on the applied project: exit code, standard output, standard error."""
    return partial(tool, applied)


EXCLUSIVE = [
    "gpu --agree --bench",
    "build --release --only rl",
    "backport --onto x --report --pull-requests",
    "install --site-packages x --discard --check",
    "pin 9.9.2 --from x --lock",
    "rebase 9.9.2 --continue --newer",
]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), ""),
        (("aply",), ""),
        (("apply", "--discrad"), ""),
        (("apply", "--from"), ""),
        (("install", "--sitepackages", "x"), "did you mean --site-packages?"),
        (("apply", "--frobnicate"), "there is no option --frobnicate\n"),
        (("apply", "--fast"), "there is no option --fast\n"),
        (("backport",), "required: --onto, BRANCH"),
        (("backport", "--ontoo", "x", "y"), "did you mean --onto?"),
        (("status", "v9.9.1"), "unrecognized arguments: v9.9.1"),
        (("check", "--all"), "there is no option --all"),
        (("build", "--python", "312"), "--python"),
        (("bundle", "--part-size", "0"), "--part-size"),
        (("test", "--all"), "there is no option --all"),
        *((tuple(words.split()), "not allowed with argument") for words in EXCLUSIVE),
    ],
)
def test_wrong_words(applied, run, words, says):
    with unchanged(applied.root):
        code, _, err = run(*words)
    usage = f"usage: scripts/nox {'' if words[:1] in ((), ('aply',)) else f'{words[0]} '}"
    assert says in err and (code, usage in err) in ((2, True), (1, False))


@pytest.mark.parametrize(("named", "machine"), [("arm64", "aarch64"), ("AMD64", "x86_64")])
def test_a_machine_has_its_name_on_linux(applied, run, named, machine):
    other = "cp312-cp312-manylinux_2_34_riscv64.whl"
    applied.edit("upstream/pins.toml", "py3-none-any.whl", other)
    code, _, err = run("build", "--machine", named)
    assert code == 1 and f"for Python 3.{sys.version_info.minor} on {machine};" in err


def test_apply_says_what_it_did(applied, run):
    said = "no release is named: v9.9.1, the default in upstream/pins.toml\n"
    run("unapply")
    code, out, err = run("apply")
    assert code == 0 and f"tree {applied.pin.patched}" in out and "2 patches" in out
    assert "steps/count-once-more" not in out and out.splitlines()[-1].startswith("next: ")
    assert err.startswith(said)
    applied.guards(">=9.9,<10", ">=9.10")
    gap = "Overlay: none\nGap: <9.10: nothing is cut there, or nobody looks\n"
    applied.edit(f"patches/{CUT}", "Overlay: none\n", gap)
    code, out, err = run("apply", TAG)
    assert code == 0 and f"work/{TAG}: 1 patch, " in out and said not in err
    applied.edit(f"patches/{COUNT}", " step_18 = 18", " step_18 = other")
    code, out, err = run("apply", TAG)
    assert code == 1 and out == ""
    patch, place, needed, following = err.splitlines()
    assert patch == f"patches/{COUNT} on {TAG} [conflict]"
    assert place == f"    {RUNNER}: hunk 1: line 18 reads 'step_18 = 18'"
    assert needed == "    the queue's patch needs 'step_18 = other'"
    assert following.startswith("    next: ")


def test_a_wheel_of_other_content_under_the_same_name_is_forced_in(applied, run):
    """pip would keep the installed one of that version."""
    note = "this clone has edits"
    assert note not in run("build", TAG)[1]
    applied.write("overlay/python/sglang/srt/steps/__init__.py", "mine = 1\n")
    code, out, err = run("build", TAG)
    assert code == 0 and note in out, err
    assert "--force-reinstall" in out.splitlines()[-1]


def test_problems_begin_with_their_place_and_the_step_of_several_is_said_once(capsys):
    show_problems([Problem("no-gpu", "v9.9.1", "has none"), Problem("no-gpu", "a", "has none")])
    rows = ["v9.9.1: has none [no-gpu]", "a: has none [no-gpu]"]
    assert capsys.readouterr().err.splitlines() == rows
    at = "patches/a.patch on sglang 9.9.1 in /a: b: python/sglang/x.py: hunk"
    what = "line 2 reads 'a; b'; the queue's patch needs 'c [d]'"
    problems = [Problem("conflict", f"{at} {number}", what, "merge") for number in (1, 2)]
    show_problems(problems)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 7 and shown[-1] == "    next: merge"
    assert shown[3:6] == [
        "patches/a.patch on sglang 9.9.1 in /a: b [conflict]",
        "    python/sglang/x.py: hunk 2: line 2 reads 'a; b'",
        "    the queue's patch needs 'c [d]'",
    ]


def test_check_says_how_much_it_fetches_and_a_problem_of_several_releases_once(applied, run):
    for version in ("9.9.2", "9.9.3"):
        applied.release(version)
    applied.edit("series", "==9.9.1", ">=9.9")
    code, _, err = run("check")
    assert "2 releases to fetch first, once: about 30 MB" in err and "another run" not in err
    assert code == 1 and err.count("[no-tree-pinned]") == 2
    code, out, err = run("check", "--write")
    assert code == 0 and "to fetch first" not in err
    first, second, *_ = out.split("\n")
    assert first == "upstream/pins.toml: trees"
    assert run("check", "--write")[1].split("\n")[0] == second, "nothing is left to write"
    applied.edit("series", ">=9.9\n", "==9.9.3\n")
    code, _, err = run("check")
    lines = [line for line in err.splitlines() if "[unexplained-gap]" in line]
    where = "patches/steps/name-the-cut.patch on 2 releases, v9.9.1 to v9.9.2: "
    assert code == 1 and sum(line.startswith(where) for line in lines) == 1, err
    applied.edit("series", "==9.9.3", ">=9.9")
    code, out, _ = run("apply", TAG, "9.9.2")
    laid = [line.partition(",")[0] for line in out.splitlines()[:-1]]
    assert code == 0 and laid == ["work/v9.9.1: already applied", "work/v9.9.2: 2 patches"]


def test_interrupted(applied, run, monkeypatch, capsys):
    monkeypatch.setattr(trees, "apply", fakes.interrupt)
    code, _, err = run("apply", TAG)
    assert (code, err) == (130, "interrupted; nothing half-done was put in place\n")
    (applied.root / atomic.JOURNAL).mkdir(parents=True)
    code, _, err = run("apply", TAG)
    assert code == 130 and "written in part; `scripts/nox check`" in err
    # what the tool imports takes a tenth of a second
    monkeypatch.setattr(program.importlib, "import_module", fakes.interrupt)
    assert program.run() == 130
    assert capsys.readouterr().err == "interrupted; nothing was begun yet\n"


@pytest.mark.parametrize("half", [undo.State.INSTALLING, undo.State.REMOVING])
def test_interrupted_halfway_in_an_installed_sglang(run, monkeypatch, tmp_path, half):
    monkeypatch.setattr(inplace, "install", fakes.interrupt)
    file = tmp_path / "site" / undo.FOLDER / undo.STATE
    file.parent.mkdir(parents=True)
    for state in (half, undo.State.INSTALLED):
        file.write_text(json.dumps({"state": state}))
        code, _, err = run("install", "--site-packages", tmp_path / "site")
        words = f"`scripts/nox install --site-packages {tmp_path}/site`"
        assert code == 130 and (words in err) is (state is half)


@pytest.mark.parametrize("command", ["apply", "check", "test", "build", "bundle", "gpu", "quilt"])
def test_a_wrong_word_is_refused_before_any_work(applied, run, command):
    with unchanged(applied.root):
        words = ("v9.9.7", "push") if command == "quilt" else (TAG, "v9.9.7")
        code, out, err = run(command, *words)
        assert (code, out) == (1, "") and err.startswith("'v9.9.7': ")
        assert "[unknown-release]" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["apply", "v0.5.99"], 1, "[unknown-release]"),
        (["lint", "--help"], 0, "usage: scripts/nox lint"),
    ],
)
def test_nox_adds_nothing_and_a_session_looks_at_its_words_first(words, code, says):
    session, *rest = words
    nox = (sys.executable, "-m", "nox", "-f", ROOT / "noxfile.py")
    done = fakes.run(*nox, "-s", session, "--", *rest)
    said = done.stdout + done.stderr
    assert done.returncode == code and says in said
    assert "problems, " not in said and "pytest tests/queue" not in said
    assert not [line for line in said.splitlines() if line.startswith("nox > ")]


def test_what_is_done_meanwhile_is_a_line_of_its_own_said_once(project, capsys):
    """Of any length, with brackets as they are, however often the tool was run before."""
    for _ in range(2):
        assert cli.main(["--root", str(project.root), "check"]) == 0
    capsys.readouterr()
    text = f"fetching [red]{'a-long-name-' * 20}.whl"
    logging.getLogger("patchqueue.upstream.source").info(text)
    assert capsys.readouterr() == ("", f"{text}\n")


# --- help, and the commands that hints name


EXAMPLES = {command.name: command.example for command in cli.COMMANDS + proving.COMMANDS}


def test_every_command_in_a_hint_exists():
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("scripts/patchqueue", "lab")
        for path in (ROOT / folder).rglob("*.py")
    ]
    names = re.findall(r"""\bto_type\(\s*["']([^"']*)["']""", "".join(texts))
    assert len(names) > 40 and {*names} <= fakes.sessions()


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command's, of both command lines."""
    return {
        name: parser
        for line in (cli, proving)
        for action in line._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }


def test_every_session_of_a_tool_is_a_command_of_one_line():
    """Each of two command lines lists its own, and no other has it."""
    names = [command.name for command in cli.COMMANDS + proving.COMMANDS]
    assert sorted(names) == sorted(parsers())
    assert {*names} == fakes.sessions() - {"lint", "linted"}


@pytest.mark.parametrize("name", [*EXAMPLES])
def test_help_fits_80_columns_and_its_example_is_one(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    made, words = parsers()[name], EXAMPLES[name].split()
    options, unknown = fakes.parser(name).parse_known_args([name, *words])
    assert not unknown and options.run
    assert to_type(name, *words).strip("`") in made.format_help()
    assert re.fullmatch(r"[A-Z].*\.", made.description, re.DOTALL)
    assert max(map(len, made.format_help().splitlines())) <= 80
    assert "VERSION" not in {action.metavar for action in made._actions}, "it is a RELEASE"


# --- options


def test_a_bundle_is_for_the_host_and_the_gpu_that_are_named(applied, tmp_path, tool, monkeypatch):
    def dependencies(contents, machine, sm, only):
        (tmp_path / "site.tar.xz").write_bytes(b"x")
        return tmp_path / "site.tar.xz", {"packages": [], "for": [machine.name, sm]}

    shutil.copytree(ROOT / "tests/gpu", applied.root / "tests/gpu")
    monkeypatch.setattr(assemble, "dependencies", dependencies)
    monkeypatch.setattr(release, "resolve", lambda *_: "")
    shutil.copy(ROOT / host.DEFAULT, tmp_path / "other-host.toml")
    words = ("--host", tmp_path / "other-host.toml", "--sm", "80")
    code, _, err = tool(applied, "bundle", *words)
    assert code == 0, err
    manifest = json.loads((applied.root / "dist/bundle/v9.9.1/manifest.json").read_text())
    assert manifest["for"] == ["other-host", 80]


@pytest.fixture
def profiled(applied, tmp_path):
    """A project with the second patch in another profile, and what its commands are run on."""
    applied.edit(f"patches/{fakes.CUT}", "Probe: ", "Profile: speed\nProbe: ")
    applied.edit(f"patches/{fakes.CUT}", "Count the steps once more", "Name the cut")
    applied.edit(f"patches/{fakes.COUNT}", "Count the steps", "Count [/] the [steps]")  # no markup
    fakes.author(tmp_path / "home")
    applied.checkout(tmp_path / "sglang")
    fakes.install(tmp_path / "site")
    return applied


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("backport --onto {}/sglang b", "Count [/] the [steps] once more"),
        ("build", f"version 9.9.1+{fakes.LABEL}.fixes"),
        ("patches --out {}/all.patch", "1 patch for"),
        ("install --site-packages {}/site", "1 patch, 1 file changed"),
    ],
)
def test_one_profile_is_handed_on(profiled, tmp_path, tool, words, said):
    code, out, err = tool(profiled, *words.format(tmp_path).split(), "--only", "fixes")
    assert code == 0 and said in out and "Name the cut" not in out, out + err


def test_the_pages_and_the_picture_are_made_of_the_rows(applied, tmp_path, tool):
    fakes.harness(applied)
    applied.write(status.PAGE, status.BEGIN + status.END)
    for name in (str(results.FILE), bench.PAGE):
        applied.write(name, (ROOT / name).read_bytes())
    code, out, err = tool(applied, "status")
    assert code == 0 and "the pages said so already" in out, err
    _, out, _ = tool(applied, "status", "--plot")
    drawn = [*(applied.root / "docs/images").glob("*.svg")]
    assert len(drawn) == 2 and out.endswith("front-dark.svg rewritten\n")
    assert all(file.read_text() == (ROOT / "docs/images" / file.name).read_text() for file in drawn)
    code, _, err = tool(applied, "status", "--merge", tmp_path / "home")
    assert code == 1 and "[no-evidence]" in err
