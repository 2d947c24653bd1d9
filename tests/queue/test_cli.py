"""The command line: exit codes, help, lines that fit, errors that say where and what next."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial

import fakes
import pytest
from fakes import COUNT, CUT, ROOT, RUNNER, TAG
from msgspec.structs import replace

from patchqueue import __main__ as program
from patchqueue.commands import cli, handover, trees
from patchqueue.files import atomic
from patchqueue.install import inplace, undo


@pytest.fixture
def run(applied, tool):
    """Run one command on the applied project: exit code, standard output, standard error."""
    call = partial(tool, applied)
    call.project = applied
    return call


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
        (("backport",), "required: --onto"),
        (("status", "v9.9.1"), "unrecognized arguments: v9.9.1"),
        (("check", "--all"), "there is no option --all"),
        (("build", "--python", "312"), "--python"),
        (("bundle", "--part-size", "0"), "--part-size"),
    ],
)
def test_wrong_words(run, words, says):
    code, _, err = run(*words)
    usage = f"usage: scripts/nox {'' if words[:1] in ((), ('aply',)) else f'{words[0]} '}"
    assert code == 2 and says in err and usage in err


def test_all_and_a_release_contradict_each_other(run):
    code, out, err = run("test", "--all", TAG)
    assert code == 1 and out == "" and "--all: means every release, v9.9.1 means one" in err


@pytest.mark.parametrize(("named", "machine"), [("arm64", "aarch64"), ("AMD64", "x86_64")])
def test_a_machine_has_its_name_on_linux(run, named, machine):
    other = "cp312-cp312-manylinux_2_34_riscv64.whl"
    run.project.edit("upstream/pins.toml", "py3-none-any.whl", other)
    code, _, err = run("build", "--machine", named)
    assert code == 1 and f"for Python 3.{sys.version_info.minor} on {machine};" in err


def test_apply_says_what_it_did(run):
    run("unapply")
    code, out, _ = run("apply")
    assert code == 0 and f"tree {run.project.pin.patched}" in out and "2 of 2 patches" in out
    assert "steps/count-once-more" not in out and out.splitlines()[-1].startswith("next: ")
    _, out, _ = run("apply", "--verbose")
    assert "steps/count-once-more" in out and "steps/name-the-cut" in out


@pytest.mark.parametrize("command", ["apply", "unapply", "build", "patches", "refresh"])
def test_a_release_that_nobody_named_is_said(run, command):
    said = "no release is named: v9.9.1, the default in upstream/pins.toml\n"
    assert run(command)[2].startswith(said) and said not in run(command, TAG)[2]


def test_apply_says_how_many_patches_are_not_for_the_release(run):
    run.project.guards(">=9.9,<10", ">=9.10")
    gap = "Overlay: none\nGap: <9.10: nothing is cut there, or nobody looks\n"
    run.project.edit(f"patches/{CUT}", "Overlay: none\n", gap)
    code, out, err = run("apply")
    assert code == 0 and "not for v9.9.1: 1 not selected" in out and "name-the-cut" not in out, err
    code, out, _ = run("apply", "--verbose")
    assert code == 0 and "steps/name-the-cut" in out and "not for v" not in out


def test_several_releases_have_a_line_each(run):
    run.project.release("9.9.2")
    run.project.warm()
    run.project.edit("series", "==9.9.1", ">=9.9")
    code, out, _ = run("apply", TAG, "9.9.2")
    laid = [line.partition(",")[0] for line in out.splitlines()[:-1]]
    assert code == 0 and laid == ["work/v9.9.1: already applied", "work/v9.9.2: 2 of 2 patches"]


def test_build_names_its_python_where_a_release_has_several_wheels(run, monkeypatch):
    (wheel,) = run.project.pin.wheels
    several = replace(run.project.pin, wheels=(wheel, wheel))
    said = f"for Python 3.{sys.version_info.minor}, which runs this; --python names another\n"
    for pin in (run.project.pin, several):
        monkeypatch.setattr(handover, "chosen_releases", lambda *_, pin=pin: [pin])
        assert (said in run("build", TAG)[2]) is (pin is several)
    assert said not in run("build", TAG, "--python", "3.12")[2]


def test_a_wheel_of_other_content_under_the_same_name_is_noted(run):
    """pip would keep the installed one of that version."""
    notes = ("this clone has edits", "a wheel of the same version with other content")
    first = run("build", TAG)[1]
    assert not any(note in first or note in run("build", TAG)[1] for note in notes)
    run.project.write("overlay/python/sglang/srt/steps/__init__.py", "mine = 1\n")
    code, out, err = run("build", TAG)
    assert code == 0 and all(note in out for note in notes), err
    assert "--force-reinstall" in out.splitlines()[-1]


def test_subjects_are_no_markup(run):
    subject = "Count [steps] once[/] more"
    run.project.edit(f"patches/{COUNT}", "Count the steps once more", subject)
    code, out, _ = run("apply", "--verbose")
    assert code == 0 and subject in " ".join(out.split())


def test_errors_name_patch_file_hunk_line_and_the_next_command(run):
    run.project.edit(f"patches/{COUNT}", " step_18 = 18", " step_18 = other")
    code, out, err = run("apply", TAG)
    assert code == 1 and out == ""
    said, following = err.splitlines()
    assert said.startswith(f"patches/{COUNT} on {TAG}: {RUNNER}: hunk 1: line 18 reads ")
    assert said.endswith(" [conflict]") and following.startswith("    next: ")


def test_check_says_how_much_it_fetches(run):
    for version in ("9.9.2", "9.9.3"):
        run.project.release(version)
    run.project.edit("series", "==9.9.1", ">=9.9")
    code, _, err = run("check")
    assert "2 releases to fetch first, once: about 30 MB" in err and "another run" not in err
    assert code == 1 and err.count("[no-tree-pinned]") == 2
    code, out, err = run("check", "--write")
    assert code == 0 and "to fetch first" not in err
    first, second, *_ = out.split("\n")
    assert first == "upstream/pins.toml: trees"
    assert run("check", "--write")[1].split("\n")[0] == second, "nothing is left to write"


def test_a_problem_of_several_releases_is_said_once(run):
    for version in ("9.9.2", "9.9.3"):
        run.project.release(version)
    run.project.warm()
    run.project.edit("series", "==9.9.1", "==9.9.3")
    code, _, err = run("check")
    lines = [line for line in err.splitlines() if "[unexplained-gap]" in line]
    where = "patches/steps/name-the-cut.patch on 2 releases, v9.9.1 to v9.9.2: "
    assert code == 1 and sum(line.startswith(where) for line in lines) == 1, err


def interrupted(*_):
    raise KeyboardInterrupt


def test_interrupted(run, monkeypatch):
    monkeypatch.setattr(trees, "apply", interrupted)
    code, _, err = run("apply", TAG)
    assert (code, err) == (130, "interrupted; nothing half-done was put in place\n")
    (run.project.root / atomic.JOURNAL).mkdir(parents=True)
    code, _, err = run("apply", TAG)
    assert code == 130 and "written in part; `scripts/nox check`" in err


@pytest.mark.parametrize("half", [undo.State.INSTALLING, undo.State.REMOVING])
def test_interrupted_halfway_in_an_installed_sglang(run, monkeypatch, tmp_path, half):
    monkeypatch.setattr(inplace, "install", interrupted)
    file = tmp_path / "site" / undo.FOLDER / undo.STATE
    file.parent.mkdir(parents=True)
    for state in (half, undo.State.INSTALLED):
        file.write_text(json.dumps({"state": state}))
        code, _, err = run("install", "--site-packages", tmp_path / "site")
        words = f"`scripts/nox install --site-packages {tmp_path}/site --verify`"
        assert code == 130 and (words in err) is (state is half)


def test_interrupted_before_a_command_begins(monkeypatch, capsys):
    """What the tool imports takes a tenth of a second."""
    monkeypatch.setattr(program.importlib, "import_module", interrupted)
    assert program.run() == 130
    assert capsys.readouterr().err == "interrupted; nothing was begun yet\n"


@pytest.mark.parametrize(
    "command", ["apply", "check", "test", "new", "build", "bundle", "gpu", "quilt"]
)
def test_a_wrong_word_is_refused_before_any_work(run, command):
    before = fakes.snapshot(run.project.root)
    own = {"quilt": ("v9.9.7", "push"), "new": ("v9.9.7", "steps/go-on")}
    code, out, err = run(command, *own.get(command, (TAG, "v9.9.7")))
    assert code == 1 and err.startswith("'v9.9.7': ") and "[unknown-release]" in err and out == ""
    assert fakes.snapshot(run.project.root) == before


def test_pin_ends_with_the_next_command(run):
    run.project.newer()
    code, out, _ = run("pin", "9.9.2", "--from", run.project.wheels)
    assert code == 0 and out.startswith("v9.9.2: 1 wheel with")
    assert out.splitlines()[-1].startswith("next: `scripts/nox rebase 9.9.2`")


@pytest.mark.parametrize("there", [True, False])
def test_new_names_a_quilt_that_is_there(run, monkeypatch, there):
    monkeypatch.setattr(trees.shutil, "which", lambda name: "/usr/bin/quilt" if there else None)
    monkeypatch.setattr(trees, "new", lambda root, pin, name: root / "patches/steps/go-on.patch")
    code, out, _ = run("new", TAG, "steps/go-on")
    quilt = "quilt" if there else "scripts/nox quilt v9.9.1"
    assert code == 0 and f"In work/v9.9.1: `{quilt} add python/sglang/…` before" in out


@pytest.mark.parametrize("words", [("BadName",), (TAG,), (), (TAG, TAG, "a/b")])
def test_new_says_how_a_patch_is_named(run, words):
    code, _, err = run("new", *words)
    assert code == 1 and "takes one name with a slash" in err and "not a version" not in err


def test_nox_adds_nothing():
    words = ("-m", "nox", "-f", ROOT / "noxfile.py", "-s", "apply", "--", "v0.5.99")
    done = fakes.run(sys.executable, *words)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "[unknown-release]" in said
    assert not [line for line in said.splitlines() if line.startswith("nox > ")]


def test_what_is_done_meanwhile_is_a_line_of_its_own_said_once(project, capsys):
    """Of any length, with brackets as they are, however often the tool was run before."""
    for _ in range(2):
        assert cli.main(["--root", str(project.root), "check"]) == 0
    capsys.readouterr()
    text = f"fetching [red]{'a-long-name-' * 20}.whl"
    logging.getLogger("patchqueue.upstream.source").info(text)
    assert capsys.readouterr() == ("", f"{text}\n")
