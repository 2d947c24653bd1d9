"""`test --upstream` on a made-up checkout: real pytest processes on a pristine and on a patched
tree."""

import re
import sys
import time
from pathlib import Path

import fakes
import pytest
from fakes import TAG, unchanged

from patchqueue.environments import testing, upstream_tests
from patchqueue.environments.testing import Environment

UNIT = "test/registered/unit"
MARK = "def register_cpu_ci(**_): pass\n\n\nregister_cpu_ci(est_time=1, suite='cpu')\n"
# what both trees have, and what the queue adds to one
STEPS = f"""import os, time
from pathlib import Path

import pytest

from sglang.srt import runner

{MARK}
PATCHED = hasattr(runner, "added_step")


def test_steps_count():
    assert runner.step_40 == 40


"""
BROKEN = "class TestSteps:\n    def test_there_are_forty(self):\n        assert not PATCHED\n"
NEITHER = """
def test_writes_beside_itself():
    Path(__file__).with_name("written").touch()


def test_on_a_gpu():
    raise RuntimeError("No CUDA GPUs are available")


def test_by_word():
    pytest.skip("no such word")


def test_of_the_queue():
    assert PATCHED
"""


@pytest.fixture
def ran(project, tmp_path, monkeypatch, tool):
    """Run `test --upstream` on a checkout that holds these files of tests: exit code and output."""
    here = Environment(Path(sys.executable), {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    monkeypatch.setattr(testing, "build", lambda *_: here)
    checkout = project.checkout(tmp_path / "checkout")

    def write(files: dict[str, str]) -> None:
        fakes.write_all(checkout / UNIT, files)

    def call(files: dict[str, str], *words: str) -> tuple[int, str]:
        write(files)
        code, out, err = tool(project, "test", TAG, "--upstream", checkout, *words)
        return code, out + err

    call.checkout, call.monkeypatch, call.write = checkout, monkeypatch, write
    return call


def counts(said: str) -> tuple[int, int]:
    """How many tests passed on both trees, and on the pristine tree alone."""
    found = re.findall(r"(\d+) tests? passed on both trees, (\d+) on the pristine", said)
    return int(found[-1][0]), int(found[-1][1])


def test_a_test_that_the_patch_breaks_is_listed(ran):
    code, said = ran({"test_steps.py": STEPS + BROKEN})
    assert code == 1, said
    listed = said[said.index("Passed on the pristine tree alone:") :]
    name = f"{UNIT}/test_steps.py::TestSteps::test_there_are_forty"
    assert f"  {name}\n      failure: assert not True" in listed
    assert counts(said) == (1, 1)


def test_all_is_well_where_none_is(ran):
    ran.write({"test_steps.py": STEPS + NEITHER})
    with unchanged(ran.checkout):
        code, said = ran({})
    assert code == 0, said
    assert counts(said) == (2, 0) and "Passed on the pristine tree alone" not in said


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("import gone", "error: ModuleNotFoundError: No module named 'gone'"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("time.sleep(60)", "timed out after 5 s"),
        ("pytest.skip('as yet', allow_module_level=True)", "skipped: "),
    ],
)
def test_a_file_that_ends_early_breaks_all_its_tests(ran, broken, why):
    if "sleep" in broken:
        ran.monkeypatch.setattr(upstream_tests, "LIMIT", 5)
    code, said = ran({"test_steps.py": f"{STEPS}if PATCHED:\n    {broken}"})
    assert code == 1
    reason = said.partition(f"{UNIT}/test_steps.py::test_steps_count\n")[2].splitlines()[0]
    assert why in reason and counts(said) == (0, 1)


def test_an_interrupted_run_ends_what_it_has_started(ran):
    def interrupted(*_):
        raise KeyboardInterrupt

    ran.monkeypatch.setattr(upstream_tests, "compare", interrupted)
    started = time.monotonic()
    files = {"test_a.py": STEPS, "test_b.py": STEPS + "time.sleep(300)\n"}
    code, said = ran(files)
    assert code == 130 and "interrupted" in said
    assert time.monotonic() - started < 120


def test_tests_get_their_own_tree_and_none_of_the_callers_settings(ran):
    ran.monkeypatch.setenv("SGLANG_IS_IN_CI", "true")
    ran.monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    beside = """
def test_finds_its_release():
    here = Path(__file__).parents[3] / "python/sglang/srt/runner.py"
    assert here.resolve() == Path(runner.__file__).resolve()
    assert "SGLANG_IS_IN_CI" not in os.environ
    assert 30000 + int(os.environ["CUDA_VISIBLE_DEVICES"][0]) == 30009
"""
    code, said = ran({"test_steps.py": STEPS + beside})
    assert code == 0 and counts(said) == (2, 0), said


def test_only_some_files(ran):
    files = {"mem_cache/test_one.py": STEPS, "test_other.py": STEPS + BROKEN}
    code, said = ran(files, "-k", "mem_")
    assert code == 0 and "1 file of upstream's unit tests" in said
    code, said = ran({}, "-k", "nothing")
    assert code == 1
    assert "'nothing': is in no path of a file of tests for CPUs [no-tests]" in said


FILE = f"{UNIT}/test_steps.py"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda folder: folder.rename(folder.with_name("gone")), "no-checkout"),
        (lambda folder: (folder / "python").rename(folder / "other"), "no-checkout"),
        (
            lambda folder: (folder / "python/sglang/srt/page.py").write_text("other = 1\n"),
            "as python/sglang/srt/page.py [tree mismatch",
        ),
        (lambda folder: (folder / FILE).unlink(), "no-tests"),
        (lambda folder: (folder / FILE).write_text(MARK + "import gone\n"), "nothing-passed"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(ran, make, name):
    ran.write({"test_steps.py": STEPS})
    make(ran.checkout)
    code, said = ran({})
    assert code == 1 and f"{name}]" in said
    assert "Traceback" not in said and said.count("\n    next: ") == 1


def test_a_release_is_not_fetched_for_no_checkout(project, tmp_path, tool):
    (tmp_path / "cache/archives").rename(tmp_path / "elsewhere")
    code, _, err = tool(project, "test", TAG, "--upstream", tmp_path / "gone")
    assert code == 1 and "[no-checkout]" in err and "fetching" not in err


def test_upstreams_marks_select(tmp_path):
    gpu, test = "register_cuda_ci(est_time=1, suite='gpu')\n", "def test_one(): pass\n"
    disabled = "register_cpu_ci(est_time=1, suite='cpu', disabled='see #1')\n"
    files = {
        f"{UNIT}/test_marked.py": MARK + test,
        f"{UNIT}/test_of_a_gpu.py": gpu + test,
        f"{UNIT}/test_off.py": disabled + test,
        f"{UNIT}/test_off_by_place.py": "register_cuda_ci(1, 'gpu', False, 'off')\n" + test,
        f"{UNIT}/test_broken.py": MARK + "def (\n",
        f"{UNIT}/helper.py": "x = 1\n",
        f"{UNIT}/conftest.py": test,
        "test/registered/models/test_model.py": gpu + test,
        "test/registered/models/test_marked_too.py": MARK + "def helper(): pass\n",
        "test/manual/test_by_hand.py": MARK + test,
    }
    fakes.write_all(tmp_path, files)
    assert upstream_tests.find(tmp_path) == [
        "test/registered/models/test_marked_too.py",
        f"{UNIT}/test_broken.py",
        f"{UNIT}/test_marked.py",
        f"{UNIT}/test_of_a_gpu.py",
    ]
