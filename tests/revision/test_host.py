"""The host itself: what the other tests stand on is real, and is the tree under test."""

import os
import signal
import subprocess
import sys

import pytest
from host import compiled, interpreted, late, sample_kernels


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_are_compiled_for_gpus_that_are_not_there(capability):
    signature = {"x_ptr": "*bf16", "y_ptr": "*bf16"}
    small, large = (
        compiled.compiled(
            sample_kernels.centre, signature, {"SIZE": size}, {"num_warps": 1}, capability
        )
        for size in (256, 32768)
    )
    assert small.spilled == 0 and 8 < small.registers < 64 and small.shared == 0
    assert large.spilled > 0
    assert "ld.global.v4" in small.ptx
    unaligned = compiled.compiled(
        sample_kernels.centre, signature, {"SIZE": 256}, {"num_warps": 1}, capability, aligned=[]
    )
    assert "ld.global.v4" not in unaligned.ptx


def test_a_module_that_cannot_run_interpreted_says_why():
    """And the next one runs all the same."""
    with pytest.raises(AssertionError, match="ended with 1: (?s:.*)No module named"):
        interpreted.run("host.references.nothing", {})
    assert interpreted.run("host.references.compare_ssd", {}) == {}


def test_the_process_of_interpreted_kernels_ends_beside_what_a_library_has_started(tmp_path):
    """torch 2.8 starts inductor's workers when it is imported; they end behind their parent
    alone."""
    started = tmp_path / "started"
    (tmp_path / "library.py").write_text(
        "import pathlib, subprocess\nmade = subprocess.Popen(['sleep', '60']);"
        f" pathlib.Path({str(started)!r}).write_text(str(made.pid))\n"
    )
    ask = (
        "import socket; from host import interpreted; interpreted.LIBRARIES = ('library',)\n"
        f"listening = socket.socket(socket.AF_UNIX); listening.bind({str(tmp_path / 'socket')!r})\n"
        "listening.listen(); interpreted.serve(listening)\n"
    )
    here = os.path.dirname(__file__)
    path = os.pathsep.join([str(tmp_path), here, os.environ["PYTHONPATH"]])
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask],
            stdin=subprocess.DEVNULL,
            timeout=30,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert done.returncode == 0
    finally:
        os.kill(int(started.read_text()), signal.SIGKILL)


def test_a_module_of_the_release_is_imported_where_it_is_used(monkeypatch):
    """Changes reach the module itself, and a release without the module can collect the file."""
    with late.modules():
        from sglang.srt import environ, of_no_release

    assert "of_no_release" in repr(of_no_release)
    late.import_all({"one": of_no_release, "other": environ})
    module = sys.modules["sglang.srt.environ"]
    monkeypatch.setattr(environ, "envs", "changed")
    assert environ.envs == module.envs == "changed" and vars(environ) is vars(module)
    with pytest.raises(ModuleNotFoundError, match="of_no_release"):
        of_no_release.anything  # noqa: B018


def test_the_first_of_several_modules_is_found_or_all_are_named():
    known, unknown = "sglang.srt.environ", "sglang.of_no_release.environ"
    assert late.first(unknown, known).__name__ == known
    assert late.has(known) and not late.has(unknown)
    with pytest.raises(ImportError, match=f"none of {unknown}, nothing"):
        late.first(unknown, "nothing")
