"""Broken input of every kind, and each rule about the queue as a whole: named with its place, and
nothing written. How a patch can stand to a pristine release."""

import inspect
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable

import fakes
import pytest
from fakes import COUNT, CUT, RELEASE, RUNNER, TAG, WHEEL, Project, header, patch_text, unchanged

from patchqueue.applying.selection import probe, select
from patchqueue.outcome import Outcome
from patchqueue.queue import series
from patchqueue.queue.series import PROVENANCE
from patchqueue.upstream import source

FIRST, LAST = f"patches/{COUNT}", f"patches/{CUT}"
LEFT, PINS = "patches/steps/left.patch", "upstream/pins.toml"
STEPS, GONE = "python/sglang/srt/steps/", "python/sglang/gone.py"
MERGED = fakes.added(RELEASE["sglang/srt/runner.py"])
Break = Callable[[Project], object]


def edit(file: str, old: str, new: str) -> Break:
    return lambda project: project.edit(file, old, new)


def write(file: str, content: str | bytes = "x = 1\n") -> Break:
    return lambda project: project.write(file, content)


def remove(file: str) -> Break:
    return lambda project: (project.root / file).unlink()


def link(file: str, to: str) -> Break:
    return lambda project: (project.root / file).symlink_to(to)


def series_is_a_folder(project: Project) -> None:
    (project.root / "series").unlink()
    (project.root / "series").mkdir()


def begin_with_a_byte_order_mark(project: Project) -> None:
    project.write("series", b"\xef\xbb\xbf" + (project.root / "series").read_bytes())


def link_instead_of_patch(project: Project) -> None:
    (project.root / FIRST).rename(project.root / "elsewhere.patch")
    (project.root / FIRST).symlink_to(project.root / "elsewhere.patch")


def change_what_upstream_lacks(project: Project) -> None:
    text = f"--- a/{GONE}\n+++ b/{GONE}\n@@ -1 +1 @@\n-a\n+b\n"
    project.write(FIRST, f"{header(Overlay=STEPS)}\n{text}")


def merge_upstream(project: Project) -> None:
    """Another release, whose runner has the change, takes the place of the pinned one."""
    (project.root / PINS).unlink()
    project.release(files=RELEASE | {"sglang/srt/runner.py": MERGED})
    project.warm()


def shadow_upstream(project: Project) -> None:
    project.write(f"overlay/{RUNNER}", "x = 1\n")
    project.edit(FIRST, "srt/steps/", f"srt/steps/, {RUNNER}")


def another_wheel(project: Project) -> None:
    fakes.write_wheel(project.wheels / WHEEL, RELEASE | {"sglang/version.py": "evil\n"})


def repinned(member: str) -> Break:
    """The release's own wheel is broken: pinned with the sha256 that it has, not yet cached."""

    def change(project: Project) -> None:
        old, path = project.pin.wheels[0].sha256, project.wheels / WHEEL
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(member, "x = 1\n")
        project.edit(PINS, old, source.file_sha256(path))

    return change


ON_HUNK = f"{FIRST} on {TAG}: {RUNNER}: hunk 1"
BROKEN = [  # the problem's name, its place, and what breaks the project
    ("no-series", "series", remove("series")),
    ("no-series", "series", series_is_a_folder),
    ("not-utf-8", "series", write("series", b"\xff\n")),
    ("bad-path", "series:1", begin_with_a_byte_order_mark),
    ("empty-guard", "series:2", edit("series", "  # >=9.9,<10", "")),
    ("missing-patch", "series:3", remove(LAST)),
    ("missing-patch", "series:2", link_instead_of_patch),
    ("unlisted-file", LEFT, write(LEFT, "")),
    ("empty", TAG, lambda project: project.guards("<9", "<9")),
    ("bad-form", FIRST, edit(FIRST, "-18,6 +18,7", "-18,6 +18,9")),
    ("conflict", f"{FIRST} on {TAG}: {GONE}", change_what_upstream_lacks),
    ("merged upstream", ON_HUNK, merge_upstream),
    ("overlay-shadows-upstream", f"overlay/{RUNNER} on {TAG}", shadow_upstream),
]
WHEELS = [
    ("wrong-sha256", WHEEL, another_wheel),
    ("bad-member", WHEEL, repinned("../x")),
    ("tree mismatch", f"{TAG} from {WHEEL}", repinned("sglang/more.py")),
]


@pytest.mark.parametrize(("name", "where", "change"), [*BROKEN, *WHEELS])
def test_a_command_refuses_broken_input_and_writes_nothing(applied, tool, name, where, change):
    change(applied)
    with unchanged(applied.root, applied.cache):
        from_wheels = ("--from", applied.wheels) if (name, where, change) in WHEELS else ()
        code, _, said = tool(applied, "apply", *from_wheels)
        rows = said.splitlines()
        assert code == 1 and any(row.endswith(f"[{name}]") and where in row for row in rows), said


def test_the_project_that_is_broken_is_good_before(applied, tool):
    assert [tool(applied, word)[0] for word in ("check", "apply")] == [0, 0]


# --- lint

VARIANT, OTHER = fakes.variant_text(), "steps/count-once-more@9.9.patch"


def problems(project) -> list[tuple[str, str]]:
    queue, found = series.read(project.root)
    assert found == []
    return [(problem.name, problem.where) for problem in series.lint(project.root, queue)]


def variants(first: str, second: str, content: str = VARIANT) -> Break:
    """A variant of the first patch, and the guards of both."""

    def change(project) -> None:
        entries = f"{COUNT}  # {first}\n{OTHER}  # {second}\n"
        project.write("series", f"{entries}{CUT}  # ==9.9.1\n")
        project.write(f"patches/{OTHER}", content)

    return change


def variant_of_nothing(project) -> None:
    variants("<9.9", ">=9.9")(project)
    (project.root / FIRST).unlink()
    project.edit("series", f"{COUNT}  # <9.9\n", "")


OURS = f"overlay/{STEPS}a.py"
LINT = [
    ("bad-variant", f"patches/{OTHER}", variants("<9.9", ">=9.9", patch_text())),
    ("bad-variant", f"patches/{OTHER}", variants("<9.9", ">=9.9", fakes.variant_text(CUT))),
    ("bad-variant", f"patches/{OTHER}", variant_of_nothing),
    ("bad-variant", LAST, write(LAST, VARIANT)),
    ("symlink", f"overlay/{STEPS}link.py", link(f"overlay/{STEPS}link.py", "__init__.py")),
    ("symlink", "overlay/test", link("overlay/test", "python")),
    ("not-utf-8", OURS, write(OURS, b"\xff\n")),
    ("crlf", OURS, write(OURS, "x = 1\r\n")),
    ("overlay-form", OURS, write(OURS, "")),
    ("overlay-form", OURS, write(OURS, "x = 1")),
    *(
        (name, f"overlay/{file}", write(f"overlay/{file}"))
        for name, file in (
            ("unnamed-overlay", "python/sglang/srt/extra.py"),
            ("reserved-name", PROVENANCE),
            ("bad-path", "setup.py"),
            ("bad-path", f"{STEPS}a b.py"),
            ("bad-path", f'{STEPS}a".py'),
        )
    ),
    ("missing-overlay", FIRST, remove(f"overlay/{STEPS}__init__.py")),
    ("unknown-patch", FIRST, edit(FIRST, "Test:", "Needs: a/b.patch\nTest:")),
    ("missing-test", FIRST, remove("tests/revision/test_steps.py")),
]


@pytest.mark.parametrize("name, where, change", LINT)
def test_lint_refuses(project, name, where, change):
    change(project)
    assert (name, where) in problems(project)


def test_all_names_are_covered():
    code = inspect.getsource(series).partition("def lint(")[2]
    assert {*re.findall(r'Problem\(\s*"([a-z0-9-]+)"', code)} == {name for name, _, _ in LINT}


def test_two_variants_for_one_release_are_refused(project):
    variants("<9.9", ">=9.9,<10")(project)
    assert problems(project) == []
    assert len(select(series.read(project.root)[0], project.pin).patches) == 2
    variants(">=9.8,<10", ">=9.9")(project)
    name, text = fakes.refused(select, series.read(project.root)[0], project.pin)
    assert name == "overlapping-variants" and COUNT in text


def test_byte_code_and_git_files_in_the_overlay_are_no_part_of_it(project):
    project.write(f"overlay/{STEPS}__pycache__/a.cpython-311.pyc", b"\0")
    project.write("overlay/.gitkeep", "")
    assert problems(project) == []


def test_each_repair_that_the_matrix_names_is_a_patch():
    """As after a rename."""
    text = (fakes.ROOT / "evidence/matrix.toml").read_text()
    names = re.findall(r'"([^"/\s]+/[^"\s]+\.patch)"', text)
    assert names and {*names} <= {entry.base for entry in series.read(fakes.ROOT)[0].entries}


# --- merged upstream


def first(project, release: str):
    """How the first patch stands to a release whose runner has this text."""
    queue, _ = series.read(project.root)
    return probe(queue, project.pin, {RUNNER: release.encode()}.get)[0]


@pytest.mark.parametrize(
    "guard, merged, gap, outcome, problem",
    [
        (">=9.9", False, None, Outcome.APPLIED, None),
        (">=9.9", True, None, Outcome.MERGED_UPSTREAM, "merged upstream"),
        ("<9.9", True, None, Outcome.MERGED_UPSTREAM, None),
        ("<9.9", False, None, Outcome.NOT_SELECTED, "unexplained-gap"),
        ("<9.9", False, ">=9.9: does it in another way", Outcome.NOT_SELECTED, None),
        ("<9.9", False, ">=9.10: does it in another way", Outcome.NOT_SELECTED, "unexplained-gap"),
    ],
)
def test_findings(project, guard, merged, gap, outcome, problem):
    project.guards(guard, "==9.9.1")
    project.write(FIRST, patch_text(Overlay=STEPS, Gap=gap))
    found = first(project, "if x:\n    added_step = 20\n" if merged else "nothing of the kind\n")
    assert (found.outcome, found.problem and found.problem.name) == (outcome, problem)
    if problem:
        assert found.problem.where == f"{FIRST} on v9.9.1" and found.problem.hint
    if outcome is Outcome.NOT_SELECTED and not problem:
        assert found.why == "does it in another way"


def test_any_probe_is_enough_and_a_missing_file_is_none(project):
    probes = [f"{GONE} :: x", f"{RUNNER} :: /^step_7 /"]
    project.write(FIRST, patch_text(Overlay=STEPS, Probe=probes))
    for number, outcome in ((7, Outcome.MERGED_UPSTREAM), (8, Outcome.APPLIED)):
        assert first(project, f"step_{number} = {number}\n").outcome is outcome


def test_check_applies_each_profile_alone(project):
    """A patch of another profile than the one whose line it changes, or whose change it needs."""
    after = MERGED.replace("added_step = 20", "added_step = 21")
    fields = {"Probe": f"{RUNNER} :: added_step = 21", "Profile": "rl", "Needs": COUNT}
    project.write(LAST, patch_text(RUNNER, MERGED, after, **fields))
    project.place()
    problems = project.check().all_problems
    assert [problem.name for problem in problems] == ["conflict", "profile"]
    assert all("--only rl" in each.what and "profile" in each.hint for each in problems)
    project.edit(FIRST, "Probe: ", "Profile: fixes, rl\nProbe: ")
    assert project.check().all_problems == ()


def test_check_names_what_is_wrong_on_one_pin_and_goes_on(project):
    project.release("9.9.2", runner=MERGED)
    project.release("9.8.0")
    project.warm()
    report = project.check()
    assert {str(pin.pin.version): pin.outcome for pin in report.pins} == {
        "9.8.0": Outcome.EMPTY,
        "9.9.1": Outcome.APPLIED,
        "9.9.2": Outcome.MERGED_UPSTREAM,
    }
    names = {(pin.pin.tag, problem.name) for pin in report.pins for problem in pin.problems}
    assert names == {
        ("v9.8.0", "unexplained-gap"),
        ("v9.8.0", "empty"),
        ("v9.9.2", "not-carried"),
        ("v9.9.2", "merged upstream"),
        ("v9.9.2", "unexplained-gap"),
    }


WORKERS = """
import os, sys, time
from patchqueue.applying import check
with check._processes() as processes:
    processes.submit(os.getpid).result()
    processes.submit(time.sleep, 60)  # one works, the others wait
    print(len(processes._processes), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_killed_check_leaves_no_worker(number):
    """All of them hold its output open: it ends when the last one has ended."""
    running = subprocess.Popen([sys.executable, "-c", WORKERS], stdout=subprocess.PIPE)
    assert int(running.stdout.readline()) > 0
    running.send_signal(number)
    running.communicate(timeout=15)
    assert running.returncode == -number
