"""The release's own package, made out of a patched one: byte for byte, or not at all."""

from __future__ import annotations

import importlib
import json
import zipfile

import fakes
import pytest
from fakes import ROOT, contents

from bundle import untouched
from patchqueue.files.tree import hash_python, list_package
from patchqueue.wheels import Target, build

OVERLAY = "sglang/srt/steps/__init__.py"


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/gpu"))
    return importlib.import_module("untouched")


@pytest.fixture
def patched(project, tmp_path):
    """The unpacked patched wheel, and what is laid beside it."""
    built = build(project.root, project.pin, Target("3.12", "x86_64"), None, tmp_path / "dist")
    with zipfile.ZipFile(built.path) as wheel:
        wheel.extractall(tmp_path / "tree")
    return tmp_path / "tree", untouched.lay(built, tmp_path / "laid")


def test_the_release_comes_back_byte_for_byte_and_the_patched_tree_stays(
    project, patched, maker, tmp_path
):
    tree, laid = patched
    (tree / "sglang/__pycache__").mkdir()
    (tree / "sglang/__pycache__/runner.pyc").write_bytes(b"x")
    (tree / "another_package").mkdir()  # an environment's own folder of packages
    (tree / f"sglang-9.9.1+{fakes.LABEL}.dist-info/INSTALLER").write_text("uv")
    before = contents(tree)
    found = maker.make(tree, laid, tmp_path / "out")
    assert contents(tmp_path / "out") == {
        name: text.encode() for name, text in fakes.RELEASE.items()
    }
    assert found == project.pin.tree == hash_python(list_package(tmp_path / "out"))
    assert contents(tree) == before
    same = "sglang/srt/kernels.so"
    assert (tmp_path / "out" / same).stat().st_ino == (tree / same).stat().st_ino, (
        "what the queue leaves alone is linked"
    )


def test_only_what_the_queue_changed_is_packed(patched):
    _, laid = patched
    plan = json.loads((laid / "plan.json").read_text())
    files = contents(laid / "files").keys()
    assert files == set(plan["replace"]) and OVERLAY in plan["remove"]
    own = ("_version.py", "srt/cut.py", "srt/runner.py")
    assert {name for name in files if name.startswith("sglang/")} == {f"sglang/{n}" for n in own}


def test_a_tree_that_is_not_the_release_is_refused(patched, maker, tmp_path):
    tree, laid = patched
    (tree / "sglang/srt/edited.py").write_text("an edit\n")
    said = "without the queue is sha256:.*, the release is sha256:"
    with pytest.raises(maker.Unmade, match=said):
        maker.make(tree, laid, tmp_path / "out")
    (laid / "files/sglang/srt/cut.py").write_text("damaged\n")
    with pytest.raises(maker.Unmade, match="cut.py is not the release's own"):
        maker.make(tree, laid, tmp_path / "more")
