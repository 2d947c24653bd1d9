"""Every option of every command changes something: the command is run with it and without it, on
the same files.

CASES names each option once; one that is new or gone fails here. What a test cannot have (a GPU, an
environment of gigabytes, an index) is replaced where the tool would start it.
"""

from __future__ import annotations

import json
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
import test_help
from fakes import RUNNER, TAG
from test_fleet import LLAMA, cells_of, keep
from test_results import result

from bundle import carried, host, peer
from bundle import release as bundle
from evidence import gpurun, results
from evidence.pages import bench as benchpage
from evidence.pages import status
from patchqueue.commands import maintain
from patchqueue.commands import testing as testing_command
from patchqueue.environments import testing, upstream_tests
from patchqueue.environments.environment import Environment
from patchqueue.upstream import pins
from patchqueue.upstream.release import add_pin

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "3.12" if HERE == "3.11" else "3.11"
MACHINE = os.uname().machine
OTHER_MACHINE = "aarch64" if MACHINE == "x86_64" else "x86_64"
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

    def run(self, words: str, root: str = "project") -> int:
        try:
            return fakes.main(
                ["--root", str(self.at / root), *shlex.split(words.format(at=self.at))]
            )
        except SystemExit as stop:
            return int(stop.code or 0)

    def note(self, text: str) -> None:
        with (self.project.root / "noted").open("a") as file:
            file.write(f"{text}\n")


def effect(world: World, code: int, said: str) -> tuple[object, ...]:
    """What a run did: its exit code, its words less the seconds they tell of, and every file."""
    files = {
        path.relative_to(world.at).as_posix(): path.read_bytes()
        for path in world.at.rglob("*")
        if path.is_file()
        # matplotlib keeps its list of fonts in .cache, once in a process
        and not {"cache", ".cache", ".git", ".patchqueue"} & set(path.parts[len(world.at.parts) :])
    }
    return code, re.sub(r"\d+\.\d s", "", said), files


def unlike(one: tuple[object, ...], other: tuple[object, ...]) -> list[object]:
    """What of two effects differs: exit codes, words, or the names of files."""
    (code, said, files), (code_2, said_2, files_2) = one, other
    names = files.keys() | files_2.keys()
    pairs = [(code, code_2), (said, said_2)]
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    return [*changed, *sorted(name for name in names if files.get(name) != files_2.get(name))]


# What the world holds before the command is run.


def plain(world: World) -> None:
    """The project as it is applied."""


def lonely(world: World) -> None:
    """The release's wheel is in kept/ alone: no cache, no index."""
    (world.at / "wheels").rename(world.at / "kept")
    (world.at / "wheels").mkdir()
    shutil.rmtree(world.at / "cache/archives")
    shutil.rmtree(world.project.root / "work")
    world.project.write("upstream/locks/9.9.1.txt", "")


def two(world: World) -> None:
    """A second release is pinned; neither has a work tree."""
    world.project.release("9.9.2")
    world.project.edit("series", "==9.9.1", ">=9.9")
    world.project.place()
    shutil.rmtree(world.project.root / "work")
    for version in ("9.9.1", "9.9.2"):
        world.project.write(f"upstream/locks/{version}.txt", "")


def edited(world: World) -> None:
    runner = world.project.tree / RUNNER
    runner.write_text(runner.read_text().replace("added_step = 20", "added_step = 21"))


def stray(world: World) -> None:
    (world.project.tree / "python/sglang/srt/page.py").write_text("first = 2\n")


def overlay_moved(world: World) -> None:
    world.project.write("overlay/python/sglang/srt/steps/__init__.py", "mine = 1\n")


def locked(world: World) -> None:
    world.project.write("upstream/locks/9.9.1.txt", "")


def to_pin(world: World) -> None:
    lonely(world)
    name = "sglang-9.9.2-py3-none-any.whl"
    fakes.write_wheel(world.at / "kept" / name, fakes.release_of("9.9.2"))


def compiled(world: World) -> None:
    """A release with a wheel for each of two Pythons and machines."""
    for python in (HERE, OTHER):
        tag = f"cp{python.replace('.', '')}"
        for machine in (MACHINE, OTHER_MACHINE):
            name = f"sglang-9.9.2-{tag}-{tag}-manylinux_2_34_{machine}.whl"
            fakes.write_wheel(world.at / "wheels" / name, fakes.release_of("9.9.2"))
    add_pin(world.project.root, "9.9.2", str(world.at / "wheels"))
    world.project.edit("series", "==9.9.1", ">=9.9")
    world.project.place()


def gpu(world: World) -> None:
    """Scripts that write down how they were called, and a second interpreter."""
    for script, name in gpurun.RESULTS.items():
        world.project.write(f"tests/gpu/{script}.py", GPU_SCRIPT.replace("RESULT", name))
    world.project.write(benchpage.PAGE, (ROOT / benchpage.PAGE).read_bytes())
    fakes.program(
        world.at / "other-python", f'echo ran >> {world.at}/used; exec {sys.executable} "$@"'
    )
    found = result(world.project, harness=fakes.harness(world.project))
    (world.at / "today.json").write_text(json.dumps(found))
    (world.at / "old.json").write_text(
        json.dumps(found | {"changes": "sha256:earlier", "queue": "sha256:x"})
    )


def to_pack(world: World) -> None:
    gpu(world)
    for name in (str(host.DEFAULT), "../other-host.toml"):
        world.project.write(name, (ROOT / host.DEFAULT).read_bytes())


def packed_peer(world: World, what: peer.Peer) -> bundle.Bundle:
    """In place of one that an index has."""
    world.note(f"{what.tag} packed")
    return bundle.Bundle(
        world.project.root / "dist", {"packages": [], "resolved_as_of": "", "parts": []}, {}
    )


def to_merge(world: World) -> None:
    gpu(world)
    (world.at / "results/one").mkdir(parents=True)
    found = json.loads((world.at / "today.json").read_text())
    (world.at / "results/one/evidence.json").write_text(json.dumps(found))
    world.project.write(status.PAGE, status.BEGIN + status.END)
    world.project.write(status.PATCHES, status.PATCHES_BEGIN + status.PATCHES_END)


def unpatched(world: World) -> None:
    """Two Pythons, each with an sglang of its own."""
    sites(world)
    for name, site in (("one", "site"), ("two", "second")):
        text = f'PYTHONPATH="{world.at / site}" exec {sys.executable} -S "$@"'
        fakes.program(world.at / name, text)


def pythons(world: World) -> None:
    unpatched(world)
    assert world.run("install --python {at}/one") == 0
    assert world.run("install --python {at}/two") == 0


def to_plot(world: World) -> None:
    """What was really measured: the picture shows rows of it."""
    to_merge(world)
    world.project.write(str(results.FILE), (ROOT / results.FILE).read_bytes())
    (world.project.root / "docs/images").mkdir(parents=True)


def real(world: World) -> None:
    """The real queue, with evidence about one model of 0.5.9."""
    (world.at / "real").mkdir()
    for name in ("series", "patches", "overlay", "upstream", "tests"):
        (world.at / "real" / name).symlink_to(ROOT / name)
    cells_of(world.at / "real")
    keep(world.at / "real", *LLAMA)
    text = (ROOT / host.DEFAULT).read_text()
    (world.at / "other-host.toml").write_text(text)


def wheel_beside(world: World) -> None:
    to_pin(world)
    shutil.copy(world.at / "kept/sglang-9.9.1-py3-none-any.whl", world.at / "wheels")


def newer(world: World) -> None:
    fakes.write_wheel(world.at / "wheels/sglang-9.9.2-py3-none-any.whl", fakes.release_of("9.9.2"))


def conflict(world: World) -> None:
    rival = fakes.numbered(40).replace("step_20 = 20", "step_20 = 200")
    files = fakes.release_of("9.9.2") | {"sglang/srt/runner.py": rival}
    fakes.write_wheel(world.at / "wheels/sglang-9.9.2-py3-none-any.whl", files)
    assert world.run("rebase 9.9.2") == 0
    solved = rival.replace("step_20 = 200\n", "step_20 = 200\nadded_step = 200\n")
    world.project.write(f"work/rebase-9.9.2/{RUNNER}", solved)


def checkouts(world: World) -> None:
    """Two checkouts of the release, with another commit on top of it."""
    (world.at / "home/.gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    for name in ("sglang", "second"):
        notes = world.at / name / "python/sglang/srt/steps/notes.txt"
        notes.parent.mkdir(parents=True)
        notes.write_text("upstream has this folder\n")
        folder = world.project.checkout(world.at / name)
        fakes.git(folder, "branch", "first")
        (folder / "python/sglang/srt/page.py").write_text("first = 3\n")
        fakes.git(folder, "commit", "-qam", name)


def with_tests(world: World) -> None:
    """Two checkouts of the release, with upstream's tests: two files in the first, one in the
    second."""
    for name in ("sglang", "second"):
        folder = world.project.checkout(world.at / name) / "test/registered/unit"
        folder.mkdir(parents=True)
        for file in ("test_one.py", "test_two.py")[: 2 if name == "sglang" else 1]:
            (folder / file).write_text("def test_it(): pass\n")


def sites(world: World) -> None:
    fakes.install(world.at / "site")
    fakes.install(world.at / "second")


def installed(world: World) -> None:
    sites(world)
    assert world.run("install --site-packages {at}/site") == 0
    assert world.run("install --site-packages {at}/second") == 0


def forked(world: World) -> None:
    """A checkout of the release with an edit of others."""
    folder = world.project.checkout(world.at / "fork")
    (folder / "python/sglang/srt/page.py").write_text("mine = 3\n")


def untagged(world: World) -> None:
    """The checkouts, without the tag that names the release."""
    checkouts(world)
    fakes.git(world.at / "sglang", "tag", "-d", TAG)


def nameless(world: World) -> None:
    """An edited site that does not say its version."""
    sites(world)
    shutil.rmtree(world.at / f"site/sglang-{fakes.VERSION}.dist-info")
    for name in ("_version.py", "version.py", "srt/page.py"):
        (world.at / "site/sglang" / name).write_text("")


def profiled(before: Callable[[World], None]) -> Callable[[World], None]:
    """The same, with the second patch in another profile than the first."""

    def lay(world: World) -> None:
        cut = "patches/steps/name-the-cut.patch"
        world.project.edit(cut, "Probe: ", "Profile: speed\nProbe: ")
        before(world)

    return lay


def edited_site(world: World) -> None:
    installed(world)
    (world.at / "site/sglang/srt/runner.py").write_text("mine\n")


@dataclass(frozen=True)
class Case:
    """The words with the option, which must do their work, and those to hold them against; what is
    laid before; where."""

    with_it: str
    without: str
    before: Callable[[World], None] = plain
    root: str = "project"


def on_gpu(command: str, option: str, words: str = "") -> tuple[str, Case]:
    base = f"{command} --here --out {{at}}/out"
    return f"{command} {option}", Case(f"{base} {words or option}", base, gpu)


def gpu_cases(command: str) -> dict[str, Case]:
    run = f"{command} --out {{at}}/out"
    here = f"{run} --here"
    return dict(
        [
            on_gpu(command, "--site", "--site {at}/packages"),
            on_gpu(command, "--pass", "--pass=--limit"),
            on_gpu(command, "--python", "--python {at}/other-python"),
            (f"{command} --here", Case(here, run, gpu)),
            (f"{command} --out", Case(here, f"{command} --here", gpu)),
        ]
    )


CASES: dict[str, Case] = {
    "apply --from": Case("apply --from {at}/kept", "apply", lonely),
    "apply --base": Case("apply --base {at}/fork", "apply", forked),
    "apply --discard": Case("apply --discard", "apply", edited),
    "apply --verbose": Case("apply --verbose", "apply"),
    "check --write": Case("check --write", "check", overlay_moved),
    "test --all": Case("test --all", "test", two),
    "test --tool": Case("test v9.9.1 --tool", "test v9.9.1", locked),
    "test -k": Case("test v9.9.1 -k scan", "test v9.9.1", locked),
    "test --plan": Case("test v9.9.1 --plan", "test v9.9.1", locked),
    "test --upstream": Case(
        "test --upstream {at}/second", "test --upstream {at}/sglang", with_tests
    ),
    "test --coverage": Case("test --coverage", "test --plan", locked),
    "refresh --add": Case("refresh --add", "refresh", stray),
    "pin --lock": Case("pin 9.9.1 --lock", "pin 9.9.1", two),
    "pin --from": Case("pin 9.9.2 --from {at}/kept", "pin 9.9.2", to_pin),
    "build --from": Case("build --from {at}/kept", "build", lonely),
    "build --python": Case(f"build 9.9.2 --python {OTHER}", "build 9.9.2", compiled),
    "build --machine": Case(f"build 9.9.2 --machine {OTHER_MACHINE}", "build 9.9.2", compiled),
    "build --release": Case("build --release", "build"),
    "bundle --host": Case("bundle --host {at}/other-host.toml", "bundle", to_pack),
    "bundle --sm": Case("bundle --sm 80", "bundle", to_pack),
    "bundle --part-size": Case("bundle --part-size 0.001", "bundle", to_pack),
    "bundle --carry-torch": Case("bundle --carry-torch", "bundle", to_pack),
    "bundle --flash": Case("bundle --flash", "bundle", to_pack),
    "bundle --peer": Case("bundle --peer vllm==0.26.0", "bundle", to_pack),
    **gpu_cases("sweep"),
    **gpu_cases("gpu"),
    **dict(
        [
            on_gpu("gpu", "--model", "--model llama"),
            on_gpu("gpu", "--mode", "--mode eager"),
            on_gpu("gpu", "--agree"),
            on_gpu("gpu", "--bench"),
            on_gpu("sweep", "--experts"),
        ]
    ),
    "status --plot": Case("status --plot", "status", to_plot),
    "status --merge": Case("status --merge {at}/results", "status", to_merge),
    "gpu --plan": Case("gpu v0.5.9 --plan", "gpu v0.5.9", real, root="real"),
    "gpu --gpu": Case("gpu v0.5.9 --plan --gpu H100", "gpu v0.5.9 --plan", real, root="real"),
    "gpu --stale": Case("gpu v0.5.9 --plan --stale", "gpu v0.5.9 --plan", real, root="real"),
    "rebase --newer": Case("rebase --newer", "rebase 9.9.2", newer),
    "rebase --from": Case("rebase 9.9.2 --from {at}/kept", "rebase 9.9.2", wheel_beside),
    "rebase --continue": Case("rebase 9.9.2 --continue", "rebase 9.9.2", conflict),
    "rebase --skip": Case("rebase 9.9.2 --skip 'nobody counts there'", "rebase 9.9.2", conflict),
    "rebase --abort": Case("rebase 9.9.2 --abort", "rebase 9.9.2", conflict),
    "backport --onto": Case(
        "backport --onto {at}/second --base first b",
        "backport --onto {at}/sglang --base first b",
        checkouts,
    ),
    "backport --base": Case(
        "backport --onto {at}/sglang --base first b", "backport --onto {at}/sglang b", checkouts
    ),
    "backport --release": Case(
        f"backport --onto {{at}}/sglang --release {TAG} b",
        "backport --onto {at}/sglang b",
        untagged,
    ),
    "backport --without": Case(
        "backport --onto {at}/sglang --base first --without steps/name-the-cut b",
        "backport --onto {at}/sglang --base first b",
        checkouts,
    ),
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
    "backport --pull-requests": Case(
        "backport --onto {at}/sglang --pull-requests",
        "backport --onto {at}/sglang --base first b",
        checkouts,
    ),
    "patches --base": Case("patches --base {at}/fork --out {at}/f", "patches --out {at}/f", forked),
    "patches --out": Case("patches --out {at}/f", "patches"),
    "install --site-packages": Case(
        "install --site-packages {at}/second", "install --site-packages {at}/site", sites
    ),
    "install --verify": Case(
        "install --site-packages {at}/site --verify", "install --site-packages {at}/site", installed
    ),
    "install --check": Case(
        "install --site-packages {at}/site --check", "install --site-packages {at}/site", sites
    ),
    "install --python": Case("install --python {at}/one", "install --python {at}/two", unpatched),
    "install --pristine": Case(
        "install --site-packages {at}/site --pristine", "install --site-packages {at}/site", sites
    ),
    "install --release": Case(
        f"install --site-packages {{at}}/site --release {TAG}",
        "install --site-packages {at}/site",
        nameless,
    ),
    "install --discard": Case(
        "install --site-packages {at}/site --discard",
        "install --site-packages {at}/site",
        edited_site,
    ),
    "uninstall --site-packages": Case(
        "uninstall --site-packages {at}/second", "uninstall --site-packages {at}/site", installed
    ),
    "uninstall --python": Case(
        "uninstall --python {at}/one", "uninstall --python {at}/two", pythons
    ),
    "uninstall --discard": Case(
        "uninstall --site-packages {at}/site --discard",
        "uninstall --site-packages {at}/site",
        edited_site,
    ),
}


# One option of each command: its words are run twice without the option, and have to do the same.
FIRST = {name: option for option in reversed([*CASES]) for name in [option.split()[0]]}.values()


def test_every_option_has_a_case_and_no_other():
    found = {
        f"{name} {action.option_strings[-1]}"
        for name, parser in test_help.parsers().items()
        for action in parser._actions
        if action.option_strings and "--help" not in action.option_strings
    }
    assert found == CASES.keys()


@pytest.fixture
def world(applied: fakes.Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """What no test has is noted where the tool would start it, with the words that it is started
    with."""
    made = World(tmp_path, applied)
    root = applied.root
    fakes.program(tmp_path / "driver/nvidia-smi", "echo 'GPU 0: NVIDIA Fake (UUID: GPU-1)'")
    fakes.program(tmp_path / "driver/pytest-python", f'echo "$PATCHQUEUE_TREE $@" >> {root}/noted')
    monkeypatch.setenv("PATH", str(tmp_path / "driver"), prepend=os.pathsep)
    python = Environment(tmp_path / "driver/pytest-python", {})
    monkeypatch.setattr(testing.environment, "build", lambda *words: python)
    monkeypatch.setattr(testing, "spread", lambda *words: [])
    monkeypatch.setattr(testing_command, "test_tool", lambda root: made.note("the tool") or 0)
    monkeypatch.setattr(testing_command, "measure_coverage", lambda root: made.note("lines") or 0)
    monkeypatch.setattr(upstream_tests, "_exit_code", ended(made))
    monkeypatch.setattr(maintain, "compile_lock", lambda *words: made.note(f"{words[0]} locked"))
    monkeypatch.setattr(peer, "pack", lambda root, pins, what, *_: packed_peer(made, what))
    monkeypatch.setattr(bundle, "dependencies", packed(tmp_path / "cache/site.tar.xz"))
    monkeypatch.setattr(bundle.carried, "pack", torch(tmp_path / "cache/torch.tar.xz"))
    monkeypatch.setattr(
        gpurun,
        "environment",
        lambda pin, wheel, lock, folder: (
            sys.executable,
            gpurun.unpack(wheel, folder / "site"),
        ),
    )
    return made


def ended(world: World) -> Callable[..., int]:
    """A file of upstream's tests that ran well."""

    def run(command: list[str], side: Path, run: upstream_tests.Run, log: int) -> int:
        report = command[-1].removeprefix("--junit-xml=")
        Path(report).write_text('<testsuite><testcase classname="x" name="test_it"/></testsuite>')
        return 0

    return run


def packed(site: Path) -> Callable[..., tuple[Path, dict]]:
    """The packed dependencies, which say what they were packed for."""

    def dependencies(pin: pins.Pin, machine: host.Host, sm: int, **_: object) -> tuple[Path, dict]:
        site.write_bytes(b"x" * 3000)
        return site, {"packages": [], "asks": [], "for": [machine.name, sm]}

    return dependencies


def torch(archive: Path) -> Callable[..., carried.Carried]:
    """A packed torch."""

    def pack(*words: object) -> carried.Carried:
        archive.write_bytes(b"x" * 3000)
        return carried.Carried(archive, False, {"torch": "9.9", "libraries": {}}, ())

    return pack


@pytest.mark.parametrize("option", CASES)
def test_every_option_changes_something(world, tmp_path_factory, monkeypatch, capfd, option):
    case = CASES[option]
    case.before(world)
    kept = tmp_path_factory.mktemp("before") / "all"
    shutil.copytree(world.at, kept, symlinks=True)
    capfd.readouterr()
    effects = []
    runs = [case.without] * (2 if option in FIRST else 1) + [case.with_it]
    for number, words in enumerate(runs):
        if number:  # the first one has the world as it was made
            shutil.rmtree(world.at)
            shutil.copytree(kept, world.at, symlinks=True)
        code = world.run(words, case.root)
        said = "".join(capfd.readouterr())
        effects.append(effect(world, code, said))
    assert not unlike(effects[0], effects[-2]), "the same words do the same"
    assert unlike(effects[-2], effects[-1]), f"{option} changes nothing"
    assert effects[-1][0] == 0, said


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ("gpu --stale", "--stale"),
        ("gpu --gpu H100", "--gpu"),
        ("gpu --plan --here", "--here"),
        ("gpu --agree --bench", "--bench"),
        ("test --upstream x --tool", "--tool"),
        ("test --coverage -k x", "-k"),
        ("build --release --from x", "--from"),
        ("backport --onto x --pull-requests --without y", "--without"),
        ("install --site-packages x --verify --discard", "--discard"),
        ("install --site-packages x --verify --pristine", "--pristine"),
        ("install --site-packages x --verify --only rl", "--only"),
        ("build --release --only rl", "--only"),
        ("apply --base x --from y", "--from"),
        ("rebase 9.9.2 --abort --from x", "--from"),
        ("rebase --newer --from x", "--from"),
        ("rebase 9.9.2 --continue --from x", "--from"),
    ],
)
def test_an_option_that_another_one_makes_idle_is_refused(world, capsys, words, idle):
    if words.startswith("rebase"):
        conflict(world)
    before = fakes.snapshot(world.project.root)
    capsys.readouterr()
    assert world.run(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{idle}: does nothing ") and "[bad-words]" in said
    assert fakes.snapshot(world.project.root) == before


def test_the_release_is_named_once(world):
    """`check` means every release as it is: there is no --all that would say so again."""
    assert world.run("check --all") == 2 and world.run(f"check {TAG}") == 0


def test_a_word_that_is_no_pinned_release_is_not_called_one(world, capsys):
    for command, meant in (
        ("new", "the patch's name"),
        ("pin", "a release that is not pinned yet"),
    ):
        assert world.run(f"{command} --help") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert meant in said and "default:" not in said
