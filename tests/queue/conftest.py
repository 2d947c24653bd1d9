"""The tests of the tool: hermetic (own home, own cache, no index), on a small release."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [str(ROOT / "scripts"), str(ROOT / "lab")]
sys.path[:0] = PACKAGES  # the tool is run from the checkout, never installed
os.environ["PYTHONPATH"] = os.pathsep.join(PACKAGES)  # for the tests that start it as a process

pytest.register_assert_rewrite("fakes")
import fakes  # noqa: E402

from patchqueue.files import run  # noqa: E402
from patchqueue.upstream import pins, source  # noqa: E402

# a busy machine is no failure; nothing is left behind
settings.register_profile("queue", deadline=None, database=None, max_examples=50)
settings.load_profile("queue")


@pytest.fixture(scope="session")
def quilt_home() -> Path | None:
    """Where the machine's own cache has quilt; None where quilt is on PATH."""
    cache = source.cache_folder()
    return None if run.find_quilt(cache).command == "quilt" else cache / "quilt"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, quilt_home: Path | None) -> Path:
    """A good project, applied, with its cache: made once, copied for each test that wants it."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "cache").mkdir()
    if quilt_home:
        (folder / "cache/quilt").symlink_to(quilt_home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATCHQUEUE_CACHE", str(folder / "cache"))
        project = fakes.make(folder / "project", folder / "cache", folder / "wheels")
        project.place()
        project.apply()
    return folder


@pytest.fixture(scope="session", autouse=True)
def nothing_synced() -> Iterator[None]:
    """A disk syncs for minutes in all, and no test turns the power off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def known_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv's notes of what the interpreter is: else each test's first call asks Python."""
    cache = tmp_path_factory.mktemp("uv-cache")
    words = ["--no-config", "--cache-dir", str(cache), "python", "find", sys.executable]
    subprocess.run([run.find_uv(), *words], check=True, capture_output=True)
    (notes,) = cache.glob("interpreter-*")
    return notes


@pytest.fixture(autouse=True)
def hermetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_python: Path) -> None:
    """A home of the test's own; pip sees the test's wheels and nothing else."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "QUILT", "PIP_", "XDG_")) or name in (
            "PATCHQUEUE_CALLED_FROM",
            "FORCE_COLOR",
            "NO_COLOR",
        ):
            monkeypatch.delenv(name)
    (tmp_path / "home/.cache/uv").mkdir(parents=True)
    (tmp_path / "home/.cache/uv" / known_python.name).symlink_to(known_python)
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "PATCHQUEUE_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "80",
        "GIT_CONFIG_NOSYSTEM": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the tool tells the user on the way."""
    lines: list[str] = []
    handler, top = logging.Handler(), logging.getLogger("patchqueue")
    handler.emit = lambda record: lines.append(record.getMessage())
    top.setLevel(logging.INFO)
    top.addHandler(handler)
    yield lines
    top.removeHandler(handler)


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command on a project: exit code, standard output, standard error."""

    def run(project: fakes.Project, *words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = fakes.main(["--root", str(project.root), *map(str, words)])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def applied(tmp_path: Path, template: Path) -> fakes.Project:
    """A good project with its queue applied and its release cached."""
    return copied(template, tmp_path)


def copied(template: Path, to: Path, *without: str) -> fakes.Project:
    """The good project, without folders of these names."""
    ignore = shutil.ignore_patterns(*without)
    shutil.copytree(template, to, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    return fakes.Project(to / "project", to / "cache", to / "wheels")


@pytest.fixture
def measured(applied: fakes.Project) -> fakes.Project:
    """A project with rules to judge results by."""
    fakes.harness(applied)
    return applied


@pytest.fixture
def project(tmp_path: Path, template: Path) -> fakes.Project:
    """A good project with its release cached and no work tree yet: in a fifth of the time."""
    return copied(template, tmp_path, "work")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The tiny release, installed."""
    return fakes.install(tmp_path / "site-packages")


@pytest.fixture(scope="session")
def real_cache() -> Path:
    """The machine's own cache of releases. Asked for before anything is redirected."""
    return source.cache_folder()


@pytest.fixture
def real_release(
    real_cache: Path, hermetic: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[pins.Pin], source.Source]:
    """A pinned release of sglang; skipped where `scripts/nox check` has not cached it."""
    monkeypatch.setenv("PATCHQUEUE_CACHE", str(real_cache))

    def fetch(pin: pins.Pin) -> source.Source:
        if not source.is_cached(pin):
            pytest.skip(f"{pin.version} is not in the cache")
        return source.fetch(pin, None)

    return fetch


@pytest.fixture
def unpacked_release(
    real_release: Callable[[pins.Pin], source.Source], tmp_path: Path
) -> Callable[[str], tuple[pins.Pin, Path]]:
    """A real release as pip would install it, and its pin."""

    def unpack(version: str) -> tuple[pins.Pin, Path]:
        pin = pins.load(ROOT).find(version)
        zipfile.ZipFile(real_release(pin).archive).extractall(tmp_path / "site")
        return pin, tmp_path / "site"

    return unpack


@pytest.fixture(scope="session")
def engine_bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte code of what the fake engines import: else each run compiles it for itself."""
    session = tmp_path_factory.getbasetemp()
    folder = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "bytecode"
    folder.mkdir(exist_ok=True)  # one for all processes: Python renames each file into place
    return folder
