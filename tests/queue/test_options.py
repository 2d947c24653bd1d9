"""Options that no test of their own command tries change something: the command is run with each
and without it, on the same files. Options that exclude each other are refused.

What a test cannot have (a GPU, dependencies of gigabytes) is replaced where the tool starts it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fakes
import pytest
from fakes import ROOT, RUNNER

from bundle import host
from bundle import release as bundle
from evidence import gpurun, results
from evidence.pages import bench as benchpage
from evidence.pages import status
from patchqueue.environments import testing
from patchqueue.upstream import pins

GPU_SCRIPT = """import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "words.json").write_text(json.dumps(sys.argv))
own = [] if sys.argv[1].startswith("-") else [f"{sys.argv[1]}.json"]  # of a row of the table
(out / [*own, "RESULT"][0]).write_text("{}")
"""


@dataclass
class World:
    """A reader's folder: the project, its wheels, and what the case laid beside them."""

    at: Path
    project: fakes.Project

    def run(self, words: str) -> int:
        try:
            filled = shlex.split(words.format(at=self.at))
            return fakes.main(["--root", str(self.project.root), *filled])
        except SystemExit as stop:
            return int(stop.code or 0)

    def note(self, text: str) -> None:
        with (self.project.root / "noted").open("a") as file:
            file.write(f"{text}\n")


def effect(world: World, code: int, said: str) -> dict[str, object]:
    """What a run did: its exit code, its words less the seconds they tell of, and every file."""
    depth = len(world.at.parts)
    files = {
        path.relative_to(world.at).as_posix(): path.read_bytes()
        for path in world.at.rglob("*")
        # matplotlib keeps its list of fonts in .cache, once in a process
        if path.is_file() and not {"cache", ".cache", ".git", ".patchqueue"} & {*path.parts[depth:]}
    }
    return files | {"its code": code, "its words": re.sub(r"\d+\.\d s", "", said)}


def unlike(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """What of two effects differs."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


# What the world holds before the command is run.


def plain(world: World) -> None:
    """The project as it is applied."""


def gpu(world: World) -> None:
    """Scripts that write down how they were called, and a second interpreter."""
    for script, name in gpurun.RESULTS.items():
        world.project.write(f"tests/gpu/{script}.py", GPU_SCRIPT.replace("RESULT", name))
    world.project.write(benchpage.PAGE, (ROOT / benchpage.PAGE).read_bytes())
    line = f'echo ran >> {world.at}/used; exec {sys.executable} "$@"'
    fakes.program(world.at / "other-python", line)
    fakes.harness(world.project)


def to_pack(world: World) -> None:
    gpu(world)
    for name in (str(host.DEFAULT), "../other-host.toml"):
        world.project.write(name, (ROOT / host.DEFAULT).read_bytes())


def to_merge(world: World) -> None:
    gpu(world)
    world.project.write(status.PAGE, status.BEGIN + status.END)


def to_plot(world: World) -> None:
    """What was really measured: the picture shows rows of it."""
    to_merge(world)
    world.project.write(str(results.FILE), (ROOT / results.FILE).read_bytes())
    (world.project.root / "docs/images").mkdir(parents=True)


def conflict(world: World) -> None:
    rival = fakes.numbered(40).replace("step_20 = 20", "step_20 = 200")
    files = fakes.release_of("9.9.2") | {"sglang/srt/runner.py": rival}
    fakes.write_wheel(world.at / "wheels/sglang-9.9.2-py3-none-any.whl", files)
    assert world.run("rebase 9.9.2") == 0
    solved = rival.replace("step_20 = 200\n", "step_20 = 200\nadded_step = 200\n")
    world.project.write(f"work/rebase-9.9.2/{RUNNER}", solved)


def checkouts(world: World) -> None:
    """A checkout of the release, with another commit on top of it."""
    fakes.author(world.at / "home")
    notes = world.at / "sglang/python/sglang/srt/steps/notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("upstream has this folder\n")
    folder = world.project.checkout(world.at / "sglang")
    fakes.git(folder, "branch", "first")
    (folder / "python/sglang/srt/page.py").write_text("first = 3\n")
    fakes.git(folder, "commit", "-qam", "more")


def sites(world: World) -> None:
    fakes.install(world.at / "site")


def profiled(before: Callable[[World], None]) -> Callable[[World], None]:
    """The same, with the second patch in another profile than the first."""

    def lay(world: World) -> None:
        world.project.edit(f"patches/{fakes.CUT}", "Probe: ", "Profile: speed\nProbe: ")
        before(world)

    return lay


@dataclass(frozen=True)
class Case:
    """The words with the option, which must do their work, and those to hold them against; what is
    laid before."""

    with_it: str
    without: str
    before: Callable[[World], None] = plain


def gpu_cases(command: str) -> dict[str, Case]:
    run = f"{command} --out {{at}}/out"
    here = f"{run} --here"
    return {
        f"{command} --site": Case(f"{here} --site {{at}}/packages", here, gpu),
        f"{command} --pass": Case(f"{here} --pass=--limit", here, gpu),
        f"{command} --python": Case(f"{here} --python {{at}}/other-python", here, gpu),
        f"{command} --here": Case(here, run, gpu),
        f"{command} --out": Case(here, f"{command} --here", gpu),
    }


# options that no test of their own command tries
CASES: dict[str, Case] = {
    "bundle --host": Case("bundle --host {at}/other-host.toml", "bundle", to_pack),
    "bundle --sm": Case("bundle --sm 80", "bundle", to_pack),
    **gpu_cases("gpu"),
    "sweep --experts": Case(
        "sweep --here --out {at}/out --experts", "sweep --here --out {at}/out", gpu
    ),
    "status --plot": Case("status --plot", "status", to_plot),
    "backport --only": Case(
        "backport --onto {at}/sglang --base first --only fixes b",
        "backport --onto {at}/sglang --base first b",
        profiled(checkouts),
    ),
    "build --only": Case("build --only fixes", "build", profiled(plain)),
    "patches --only": Case(
        "patches --only fixes --out {at}/f", "patches --out {at}/f", profiled(plain)
    ),
    "install --only": Case(
        "install --site-packages {at}/site --only fixes",
        "install --site-packages {at}/site",
        profiled(sites),
    ),
    "test --coverage": Case("test --coverage", "test -k x --all", plain),
}


@pytest.fixture
def world(applied: fakes.Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """What no test has is noted where the tool would start it, with the words that it is started
    with."""
    made = World(tmp_path, applied)

    def environment(pin: pins.Pin, wheel: Path, lock: Path, folder: Path) -> tuple[str, Path]:
        return sys.executable, gpurun.unpack(wheel, folder / "site")

    fakes.program(tmp_path / "driver/nvidia-smi", "echo 'GPU 0: NVIDIA Fake (UUID: GPU-1)'")
    monkeypatch.setenv("PATH", str(tmp_path / "driver"), prepend=os.pathsep)
    monkeypatch.setattr(testing, "measure_coverage", lambda root: made.note("lines") or 0)
    monkeypatch.setattr(bundle, "dependencies", packed(tmp_path / "cache/site.tar.xz"))
    monkeypatch.setattr(gpurun, "environment", environment)
    return made


def packed(site: Path) -> Callable[..., tuple[Path, dict]]:
    """The packed dependencies, which say what they were packed for."""

    def dependencies(pin: pins.Pin, machine: host.Host, sm: int, **_: object) -> tuple[Path, dict]:
        site.write_bytes(b"x" * 3000)
        return site, {"packages": [], "resolved_as_of": "2030-01-02", "for": [machine.name, sm]}

    return dependencies


@pytest.mark.parametrize("option", CASES)
def test_every_option_changes_something(world, tmp_path_factory, capfd, option):
    case = CASES[option]
    case.before(world)
    kept = tmp_path_factory.mktemp("before") / "all"
    shutil.copytree(world.at, kept, symlinks=True)
    capfd.readouterr()
    effects = []
    for number, words in enumerate([case.without, case.without, case.with_it]):
        if number:  # the first one has the world as it was made
            shutil.rmtree(world.at)
            shutil.copytree(kept, world.at, symlinks=True)
        code = world.run(words)
        said = "".join(capfd.readouterr())
        effects.append(effect(world, code, said))
    assert not unlike(effects[0], effects[1]), "the same words do the same"
    assert unlike(effects[1], effects[2]), f"{option} changes nothing"
    assert code == 0, said


@pytest.mark.parametrize(
    "words",
    [
        "gpu --agree --bench",
        "test --upstream x --tool",
        "test --coverage --tool",
        "build --release --only rl",
        "backport --onto x --report --pull-requests",
        "install --site-packages x --discard --verify",
        "install --site-packages x --verify --check",
        "pin 9.9.2 --from x --lock",
        "rebase 9.9.2 --continue --abort",
    ],
)
def test_options_that_exclude_each_other_are_refused(world, capsys, words):
    before = fakes.snapshot(world.project.root)
    assert world.run(words) == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert fakes.snapshot(world.project.root) == before
