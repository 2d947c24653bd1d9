"""The jobs of a fleet are those that fill cells of the support matrix; CI's workflow and the batch
script take them as they are printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict
from functools import cache
from pathlib import Path

import fakes
import pytest
from fakes import ROOT
from msgspec.structs import replace

from bundle.host import DEFAULT
from evidence import cells, fleet, harness, matrix, results
from evidence.commands import main
from evidence.footprints import Validity
from evidence.results import Row
from patchqueue.outcome import Refused
from patchqueue.queue import series
from patchqueue.upstream import pins

PINS = pins.load(ROOT)
SCRIPT = ROOT / "scripts/slurm/prove.sbatch"
WORKFLOW = (ROOT / ".github/workflows/gpu.yml").read_text(encoding="utf-8")


@cache
def jobs(
    root: Path = ROOT,
    tags: tuple[str, ...] = (),
    gpus: tuple[str, ...] = ("H200",),
    models: tuple[str, ...] = (),
    stale: bool = False,
) -> list[fleet.Job]:
    named = [PINS.find(tag) for tag in tags] or PINS.all
    return fleet.jobs(root, named, gpus, models, ROOT / DEFAULT, stale)


jobs_of_today = jobs.__wrapped__  # of a project that changes


def test_every_cell_that_can_be_proven_has_its_job_and_no_other():
    queue = series.read(ROOT)[0]
    wanted = {
        (pin.tag, model, feature.mode)
        for pin in PINS.all
        for feature in cells.load(ROOT).features
        for model in feature.known(pin.version)
        if matrix.expected(queue, pin, feature).state is not matrix.State.NOT_APPLICABLE
    }
    found = [(job.revision, job.model, mode) for job in jobs() for mode in job.modes]
    assert len(found) == len(set(found)) and set(found) == wanted
    oldest = {job.model for job in jobs(tags=("v0.5.5.post3",))}
    assert "nemotron-h" in oldest and "nemotron-h-moe" not in oldest


def test_what_tests_gpu_says_of_itself_is_so():
    asked = (
        "import sys; sys.path.insert(0, 'tests/gpu'); import harness, json, models, modes;"
        " print(json.dumps([[*models.MODELS], [*modes.ALL], harness.identity()]))"
    )
    words = [sys.executable, "-c", asked]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    said = harness.load(ROOT)
    known = [list(said.models), list(said.modes), harness.identity(ROOT)]
    assert json.loads(done.stdout) == known


def test_jobs_say_what_a_fleet_plans_by():
    (job,) = jobs(tags=("v0.5.9",), models=("llama",))
    assert job.modes == ("piecewise", "piecewise-inductor", "breakable") and job.queue
    assert (job.torch, job.host, job.host_torch) == ("2.9.1", "torch-2.11", "2.11.0")
    (repaired,) = jobs(tags=("v0.5.23",), models=("llama",))
    assert (repaired.modes, repaired.queue) == (("breakable",), True)


def test_a_label_names_every_gpu_of_its_kind_and_no_other():
    assert fleet.label("NVIDIA H100 80GB HBM3") == "H100-80GB-HBM3"
    assert fleet.is_of("H100", "NVIDIA H100 80GB HBM3") and fleet.is_of("h100", "NVIDIA H100 PCIe")
    assert not fleet.is_of("H20", "NVIDIA H200") and not fleet.is_of("H200", "NVIDIA H20")


@pytest.fixture
def project(tmp_path):
    """The real queue with evidence of its own: 0.5.9 on an H200."""
    (tmp_path / "project/evidence").mkdir(parents=True)
    for name in ("series", "patches", "overlay", "upstream", "tests"):
        (tmp_path / "project" / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / cells.FILE, tmp_path / "project" / cells.FILE)
    return tmp_path / "project"


def evidence_of(project: Path) -> str:
    """What is known of 0.5.9's Llama."""
    return jobs_of_today(project, ("v0.5.9",), models=("llama",))[0].evidence


def keep(project: Path, *runs: tuple[str, str, str], **changes) -> None:
    """Rows of 0.5.9 on an H200, in place of what was there."""
    host = {"date": "2030-01-02", "gpu": "NVIDIA H200", "torch": "2.9.1"}
    about = {"kind": "proof", "release": "0.5.9", "queue": PINS.find("0.5.9").patched}
    rows = [
        Row(model=model, name=mode, verdict=verdict, **about, **host)
        for model, mode, verdict in runs
    ]
    results.save(project, [replace(row, **changes) for row in rows])


MODES = ("piecewise", "piecewise-inductor", "breakable")
EARLIER = {"queue": "sha256:earlier"}
LLAMA = [("llama", mode, "passed") for mode in ("reference", *MODES)]


@pytest.mark.parametrize(
    ("runs", "changes", "left"),
    [
        (LLAMA, {}, ()),
        ([*LLAMA[:3], ("llama", "breakable", "failed")], {}, ()),  # a failure is evidence too
        (LLAMA[:3], {}, ("breakable",)),
        ([*LLAMA[:3], ("llama", "breakable", "not run")], {}, ("breakable",)),
        (LLAMA, EARLIER, MODES),
        (LLAMA, {"gpu": "NVIDIA H20"}, MODES),
    ],
)
def test_stale_leaves_what_has_evidence_about_todays_queue(project, runs, changes, left):
    keep(project, *runs, **changes)
    found = jobs_of_today(project, ("v0.5.9",), models=("llama",), stale=True)
    assert tuple(mode for job in found for mode in job.modes) == left
    # without --stale all stays
    assert len(jobs_of_today(project, ("v0.5.9",), models=("llama",))) == 1


def test_a_tenth_of_what_holds_for_its_files_alone_is_drawn(project, monkeypatch):
    monkeypatch.setattr(Validity, "same_files", lambda self, row: True)
    keep(project, *LLAMA, queue="sha256:earlier")
    assert evidence_of(project) == "same files"
    assert len(jobs_of_today(project, ("v0.5.9",), models=("llama",), stale=True)) <= 1
    drawn = sum(fleet._is_left(fleet.SAME_FILES, f"queue {number}") for number in range(1000))
    assert 60 < drawn < 140
    assert fleet._is_left(fleet.STALE, "") and not fleet._is_left(fleet.CURRENT, "")


@pytest.mark.parametrize(
    ("count", "changes", "said"),
    [(4, {}, "current"), (4, EARLIER, "stale"), (3, EARLIER, "not run")],
)
def test_what_is_least_known_is_said(project, count, changes, said):
    keep(project, *LLAMA[:count], **changes)
    assert evidence_of(project) == said


def test_gpus_are_those_of_evidence_unless_they_are_named(project):
    with pytest.raises(Refused, match="no-gpu-kind"):
        jobs_of_today(project, gpus=())
    keep(project, *LLAMA)
    rows = results.load(project)
    results.save(project, [*rows, *(replace(row, gpu="NVIDIA H100 80GB HBM3") for row in rows)])
    for named, gpus in (((), {"H200", "H100-80GB-HBM3"}), (("B200", "NVIDIA B200"), {"B200"})):
        assert {job.gpu for job in jobs_of_today(project, gpus=named)} == gpus
    with pytest.raises(Refused, match="names no GPU"):
        jobs_of_today(project, gpus=("!!!",))


def test_a_model_that_fills_no_cell_is_refused():
    with pytest.raises(Refused, match="one of nemotron-h"):
        jobs(models=("gpt-2",))


def test_the_command_prints_githubs_matrix(capsys):
    words = ["v0.5.9", "0.5.11", "--gpu", "H100", "--gpu", "H200", "--model", "llama"]
    assert main(["--root", str(ROOT), "gpu", "--plan", *words]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.count("\n") == 1  # nox hands both on as one
    (name, rows), *_ = json.loads(said.out).items()
    wanted = [(tag, gpu) for tag in ("v0.5.11", "v0.5.9") for gpu in ("H100", "H200")]
    assert name == "include" and [(row["revision"], row["gpu"]) for row in rows] == wanted


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: file.name
)
def test_a_workflow_runs_what_was_read(file):
    """An action is the commit that was looked at, whoever moves its tag; and no value is pasted
    into a script, where its words would be commands."""
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"uses: *(.*)", text)
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each) for each in used)
    scripts = re.findall(r"(?m)^( *)(?:- )?run: (?:\|\n((?:\1 .*\n|\n)+)|(.*))", text)
    assert scripts and not any("${{" in part for script in scripts for part in script)


def step(folder: Path, jobs: int) -> tuple[int, str, dict[str, str]]:
    """The workflow's own step that asks for the matrix, where the tool prints so many jobs, oldest
    release first. Its exit code, what it printed, and its outputs."""
    if not shutil.which("jq"):
        pytest.skip("jq is not installed")
    text = re.search(r"\n        run: \|\n((?: {10}.*\n|\n)+)", WORKFLOW)[1]
    include = json.dumps({"include": [{"revision": f"v{number}"} for number in range(jobs)]})
    (folder / "matrix.json").write_text(include)
    fakes.program(folder / "scripts/nox", "cat matrix.json")
    outputs = folder / "outputs"
    known = dict.fromkeys(("REVISIONS", "GPUS", "MODELS", "ALL"), "")
    how = {"env": os.environ | known | {"GITHUB_OUTPUT": str(outputs)}, "cwd": folder}
    words = ["bash", "-e", "-c", textwrap.dedent(text)]
    ran = subprocess.run(words, capture_output=True, text=True, **how)
    lines = outputs.read_text().splitlines() if outputs.exists() else []
    return ran.returncode, ran.stdout, dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("jobs", [0, 256])
def test_the_workflow_runs_every_job_of_a_matrix(tmp_path, jobs):
    code, said, outputs = step(tmp_path, jobs)
    assert (code, said, outputs["jobs"]) == (0, "", str(jobs))
    assert len(json.loads(outputs["matrix"])["include"]) == jobs


def test_a_fleet_with_more_jobs_than_a_matrix_takes_proves_the_newest_first(tmp_path):
    """The others come in later nights: what has evidence is not asked for again."""
    code, said, outputs = step(tmp_path, 300)
    assert code == 0 and said.startswith("::warning::300 jobs") and outputs["jobs"] == "256"
    kept = [row["revision"] for row in json.loads(outputs["matrix"])["include"]]
    assert kept == [f"v{number}" for number in range(44, 300)]


# the batch script, up to where a GPU is needed


@pytest.fixture
def checkout(tmp_path):
    """A folder with the script, and a nox that says what it was asked."""
    folder = tmp_path / "checkout"
    (folder / "scripts/slurm").mkdir(parents=True)
    shutil.copy2(SCRIPT, folder / "scripts/slurm/prove.sbatch")
    fakes.program(folder / "scripts/nox", 'printf "%s\\n" "$@"')
    rows = [asdict(job) for job in jobs(tags=("v0.5.9",))]
    (folder / "matrix.json").write_text(json.dumps({"include": rows}))
    (folder / "empty.json").write_text('{"include": []}')
    (folder / "bad.json").write_text('[{"revision": "v0.5.9"}]')
    return folder


def batch(checkout: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    known = {"PATH": path, "PATCHQUEUE_PYTHON": sys.executable} | variables
    command = ["bash", "scripts/slurm/prove.sbatch", *words]
    return subprocess.run(command, cwd=checkout, env=known, capture_output=True, text=True)


def test_a_task_runs_its_job_of_the_matrix(checkout):
    for number, job in enumerate(jobs(tags=("v0.5.9",))):
        task = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7"}
        done = batch(checkout, "matrix.json", "results", **task)
        words = done.stdout.splitlines()[1:]
        assert done.returncode == 0 and words[:2] == ["gpu", job.revision]
        modes = [word for word in words if word.startswith("--mode=")]
        assert modes == [f"--mode={mode}" for mode in job.modes]
        out = f"--out=results/v0.5.9.H200.{job.model}.7-0"
        assert {f"--model={job.model}", out, f"--pass={21000 + 200 * number}"} <= {*words}
        assert "--here" not in words


def test_nodes_without_an_index_take_the_releases_bundle(checkout):
    more = {"SITES": "/shared/my sites", "WORDS": "--pass=--width --pass=2"}
    known = {f"PATCHQUEUE_{name}": value for name, value in more.items()}
    done = batch(checkout, "matrix.json", "results", SLURM_ARRAY_TASK_ID="0", **known)
    own = {"--here", f"--python={sys.executable}", "--site=/shared/my sites/v0.5.9"}
    assert own | {"--pass=--width", "--pass=2"} <= {*done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "task", "code", "told"),
    [
        ("matrix.json results", None, 0, "next: sbatch --array=0-7 scripts/slurm/prove.sbatch "),
        ("empty.json results", None, 0, "nothing is left to prove"),
        ("matrix.json", None, 2, "usage: "),
        ("bad.json results", "0", 1, "bad.json is no matrix"),
        ("matrix.json results", "8", 1, "has 8 jobs, numbered from 0: there is no job 8"),
    ],
)
def test_the_script_says_what_to_type_next(checkout, words, task, code, told):
    done = batch(checkout, *words.split(), **({"SLURM_ARRAY_TASK_ID": task} if task else {}))
    assert done.returncode == code and told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
