"""Bundles: equal content packs equally, a wrong description is named. The release's own package,
made out of a patched one: byte for byte, or not at all."""

import json
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import fakes
import gpumodules
import pytest
from fakes import contents, unpack
from packaging.version import Version

from bundle import assemble as bundle
from bundle import host, packing, untouched
from bundle.rules import RULES, Trimmed
from patchqueue.files.tree import hash_python, list_package
from patchqueue.outcome import Refused
from patchqueue.wheels import Target, build


@pytest.fixture
def folder(tmp_path):
    files = {"b.py": "b = 1\n", "deep/a.so": b"\x7fELF", "deep/__pycache__/a.pyc": b"x"}
    return fakes.write_all(tmp_path / "made", files)


def test_equal_content_packs_equally_whenever_it_was_written(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for number, path in enumerate(copy.rglob("*"), 1):
        os.utime(path, (number, number))  # a whole second apart: an archive keeps no more of it
    for source, name in ((folder, "one"), (copy, "two")):
        packing.archive(tmp_path / name, [(source, "tree")])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one", "r:xz") as archive:
        modes = {entry.name: entry.mode for entry in archive}
    assert modes == {"tree/b.py": 0o644, "tree/deep/a.so": 0o755}


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """Where a host that unpacks into there/ runs engines."""
    launch = gpumodules.load(monkeypatch, "launch")
    place = launch.Place((tmp_path / "there/tree", tmp_path / "there/site"), tmp_path / "out")
    place.scratch.mkdir(parents=True)
    return place


def write(out: Path, folder: Path) -> list[dict]:
    """A bundle of which site/ and tree/ are this folder. Returns its parts."""
    shutil.rmtree(out, ignore_errors=True)
    archives = {name: out.with_name(f"packed-{name}") for name in ("site", "tree")}
    for name, archive in archives.items():
        packing.archive(archive, [(folder, name)])
    out.mkdir()
    manifest: dict = {}
    bundle.write(out, archives, 100, manifest)
    return manifest["parts"]


def test_unpack_joins_the_parts_and_refuses_a_damaged_one(folder, tmp_path):
    out, there = tmp_path / "bundle", tmp_path / "there"
    parts = write(out, folder)
    assert len(parts) > 2 and all(part["bytes"] <= 100 for part in parts)
    unpack(out, there, check=True)
    for inner in ("site", "tree"):
        assert (there / inner / "b.py").read_text() == "b = 1\n"
    (there / "tree/gone.py").touch()
    (there / "untouched").mkdir()
    unpack(out, there, check=True)
    assert not (there / "tree/gone.py").exists() and not (there / "untouched").exists()
    assert (there / "tree/b.py").exists()
    fakes.write(tmp_path / "own/tree/mine.py")
    unpack(out, tmp_path / "own", check=True)
    assert (tmp_path / "own/tree/mine.py").exists()
    damaged = out / parts[0]["file"]
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    assert unpack(out, tmp_path / "again").returncode


def test_a_tree_unpacked_again_runs_as_it_is_now(folder, tmp_path, engines):
    """An archive keeps no dates: byte code of the tree before would pass for the new one's."""
    for value in (1, 2):
        (folder / "b.py").write_text(f"b = {value}\n")
        write(tmp_path / "bundle", folder)
        unpack(tmp_path / "bundle", tmp_path / "there", check=True)
        assert engines.ask("import b; print(b.b)") == value


def test_unpack_compiles_what_engines_import(folder, tmp_path, engines):
    """Else every process of the first engines does, on one core each."""
    (folder / "deep/template.py").write_text("def {name}():\n")
    fakes.write(tmp_path / "host/torch/__init__.py")
    write(tmp_path / "bundle", folder)
    done = unpack(tmp_path / "bundle", tmp_path / "there", tmp_path / "host")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(engines.bytecode.rglob("tree/b.*.pyc"))
    assert list(engines.bytecode.rglob("host/torch/__init__.*.pyc"))
    assert engines.environment()["PYTHONPYCACHEPREFIX"] == str(engines.bytecode)


def test_trimming_says_how_much_it_took(folder):
    patterns = ("deep", "nothing-like-this")
    gone = packing.trim(folder, Trimmed("kernels nobody calls", patterns))
    assert gone == {"reason": "kernels nobody calls", "patterns": [*patterns], "bytes": 5}
    assert not (folder / "deep").exists()


def test_flash_attention_is_packed_where_it_is_asked_for(project):
    """And nothing stands in for it then."""
    for flash in (False, True):
        rules = RULES.release.of(project.pin.version, flash)
        patterns = [one for rule in bundle.trim_rules(rules, 90) for one in rule.patterns]
        assert ("sgl_kernel/flash_ops*" in patterns) != flash
        assert ("sgl_kernel.flash_ops" in rules.stand_ins) != flash
        assert "sgl_kernel/infllm_ops*" in patterns and "tilelang" in rules.stand_ins


def ran(code: str, *folders: Path) -> str:
    """What Python says of this code, with packages of these folders."""
    path = os.pathsep.join(map(str, folders))
    done = fakes.run(sys.executable, "-c", code, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_host_files_stand_in_for_what_was_left_out(tmp_path):
    folder = tmp_path / "hostsite"
    bundle.lay_host_files(folder, ["leftout"])
    assert json.loads((folder / "patchqueue_site.json").read_text())["stand_ins"] == ["leftout"]
    code = "import leftout.inner; from leftout import Grammar; Grammar(1).anything(); print('ok')"
    assert ran(code, folder) == "ok\n"


def test_a_package_that_adds_to_the_path_itself_is_found(tmp_path):
    """nvidia-cutlass-dsl has a .pth file, which Python runs in site-packages alone."""
    bundle.lay_host_files(tmp_path / "hostsite", [])
    fakes.write(tmp_path / "site/outer/inner/found.py", "print('found')")
    line = "import sys, os, outer; sys.path.append(os.path.join(outer.__path__[0], 'inner'))"
    (tmp_path / "site/outer.pth").write_text(line)
    assert ran("import found", tmp_path / "hostsite", tmp_path / "site") == "found\n"


@pytest.mark.parametrize(
    ("version", "packed"),
    [("0.5.7", False), ("0.5.8.post1", True), ("0.5.21", False), ("0.5.22", True)],
)
def test_what_a_release_asks_for_at_its_start_is_packed(version, packed):
    """Llama's layers import CuTe's compiler from 0.5.22 on, where a Hopper GPU never runs it. On
    0.5.8 NemotronH's do: without it no GPU could load that model or Qwen3-Next."""
    left_out = RULES.release.of(Version(version), flash=False).packages
    assert ("nvidia-cutlass-dsl" not in left_out) is packed and "xgrammar" in left_out


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot be read"),
        ("python = ", "bad-host|is not TOML: "),
        ('python = "3.12"\n', "missing required field `platform`"),
        (
            'python = "3.12"\nplatform = "x"\ntorch = "2"\nbrings = []\n[[kernel]]\n',
            "unknown field `kernel`",
        ),
    ],
)
def test_a_wrong_host_description_is_named(tmp_path, text, named):
    file = tmp_path / "host.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Refused, match=named):
        host.load(file)


# --- the untouched release


maker = gpumodules.fixture("maker", "untouched")


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
    plan = json.loads((laid / "plan.json").read_text())
    files = contents(laid / "files").keys()
    assert files == set(plan["replace"]) and "sglang/srt/steps/__init__.py" in plan["remove"]
    own = {f"sglang/{name}" for name in ("_version.py", "srt/cut.py", "srt/runner.py")}
    assert {name for name in files if name.startswith("sglang/")} == own, "what was changed"
    (tree / "sglang/__pycache__").mkdir()
    (tree / "sglang/__pycache__/runner.pyc").write_bytes(b"x")
    (tree / "another_package").mkdir()  # an environment's own folder of packages
    (tree / f"sglang-9.9.1+{fakes.LABEL}.dist-info/INSTALLER").write_text("uv")
    before = contents(tree)
    found = maker.make(tree, laid, tmp_path / "out")
    released = {name: text.encode() for name, text in fakes.RELEASE.items()}
    assert contents(tmp_path / "out") == released
    assert found == project.pin.tree == hash_python(list_package(tmp_path / "out"))
    assert contents(tree) == before
    one, other = (folder / "sglang/srt/kernels.so" for folder in (tmp_path / "out", tree))
    assert one.samefile(other), "what the queue leaves alone is linked"


def test_a_tree_that_is_not_the_release_is_refused(patched, maker, tmp_path):
    tree, laid = patched
    (tree / "sglang/srt/edited.py").write_text("an edit\n")
    said = "without the queue is sha256:.*, the release is sha256:"
    with pytest.raises(maker.Unmade, match=said):
        maker.make(tree, laid, tmp_path / "out")
    (laid / "files/sglang/srt/cut.py").write_text("damaged\n")
    with pytest.raises(maker.Unmade, match="cut.py is not the release's own"):
        maker.make(tree, laid, tmp_path / "more")
