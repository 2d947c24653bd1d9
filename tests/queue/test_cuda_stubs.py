"""Locks and environments: what can be proved without building one."""

import _ctypes
import ctypes
import sys
from pathlib import Path

import fakes
import pytest
from fakes import TAG

from patchqueue.environments import cuda_stubs, lock, testing
from patchqueue.environments.cuda_stubs import Wants, missing_libraries, read_wants, shared_library
from patchqueue.outcome import Refused

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="ELF files")


@ON_LINUX
@pytest.mark.parametrize("version", [None, "libcublas.so.12"])
def test_a_stand_in_loads_and_every_function_says_no_device(tmp_path, version):
    file = tmp_path / "libcublas.so.12"
    file.write_bytes(shared_library(file.name, {f"cublas{n}": version for n in range(50)}))
    library = ctypes.CDLL(str(file))
    assert {getattr(library, f"cublas{n}")() for n in range(50)} == {cuda_stubs.NO_DEVICE}
    assert not hasattr(library, "cublas50")


def test_only_known_missing_libraries_are_stood_in_for():
    names = ["cuda.so.1", "cudart.so.12", "cufile.so.0", "c.so.6", "avutil.so.60", "cublas.so.12"]
    cudart, cublas = "libcudart.so.12", "libcublas.so.12"
    wanted = {
        ("cuInit", None, None),
        ("cuFileRead", None, None),
        ("cudaMalloc", cudart, cudart),
        ("cublasCreate_v2", cublas, cublas),
        ("printf", "libc.so.6", "GLIBC_2.2.5"),
        ("curious", None, None),
    }
    wants = Wants(frozenset(f"lib{name}" for name in names), frozenset(wanted))
    assert missing_libraries([wants], [cudart]) == {
        cublas: {"cublasCreate_v2": cublas},
        "libcuda.so.1": {"cuInit": None},
        "libcufile.so.0": {"cuFileRead": None},
    }


@ON_LINUX
def test_what_a_real_library_wants_is_read(tmp_path):
    wants = read_wants(Path(_ctypes.__file__))
    assert wants is not None and any(name.startswith("libc.so") for name in wants.libraries)
    assert any(version and version.startswith("GLIBC_") for _, _, version in wants.symbols)
    for content in (b"", b"\x7fELF", b"INPUT(libfoo.so)" * 9):
        (tmp_path / "x.so").write_bytes(content)
        assert read_wants(tmp_path / "x.so") is None, "other files want nothing"


def test_a_lock_holds_names_versions_and_hashes_only():
    wheel = {"url": "https://index.invalid/a.whl", "hashes": {"sha256": "a" * 64}}
    made = lock.body({"packages": [{"name": "a", "version": "1", "wheels": [wheel]}]})
    assert made == f"a==1 \\\n    --hash=sha256:{'a' * 64}\n"
    for without in ({"directory": {"path": "."}}, {"version": "1", "sdist": {}}):
        with pytest.raises(ValueError, match="a "):
            lock.body({"packages": [{"name": "a"} | without]})


@pytest.fixture
def locked(project):
    """The lock of the project's release."""
    return project.write(f"upstream/locks/{project.pin.version}.txt", "a==1\n")


def test_an_environment_counts_only_with_its_own_locks_mark(project, locked):
    folder = project.root / testing.HOME / TAG
    assert testing.find(project.root, project.pin) is None
    folder.mkdir(parents=True)
    assert testing.find(project.root, project.pin) is None
    (folder / testing.MARKER).write_text(testing.stamp(locked))
    assert testing.find(project.root, project.pin) is not None
    locked.write_text("a==2\n")
    assert testing.find(project.root, project.pin) is None


def test_a_failed_install_leaves_no_environment(project, locked, tmp_path, monkeypatch):
    home = project.root / testing.HOME
    project.write(f"{testing.HOME}/{TAG}/old", "")
    fakes.program(tmp_path / "uv", "echo no space left >&2; exit 1")
    monkeypatch.setattr(testing.run, "find_uv", lambda: str(tmp_path / "uv"))
    monkeypatch.setattr(testing.sys, "platform", "linux")
    monkeypatch.setattr(testing.platform, "machine", lambda: "x86_64")
    with pytest.raises(Refused, match="no space left"):
        testing.build(project.root, project.pin)
    assert [path.name for path in home.iterdir()] == [f".{TAG}.lock"]
