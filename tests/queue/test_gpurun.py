"""Running tests/gpu on a host: on the built wheel's files, and nothing where it cannot."""

import json
import os
import sys
from pathlib import Path

import fakes
import pytest
from fakes import unchanged

from evidence import gpurun
from patchqueue.outcome import Refused

SCRIPT = """import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
(out / "words.json").write_text(json.dumps(sys.argv[1:]))
if "--fail" in sys.argv:
    sys.exit(3)
(out / "evidence.json").write_text("{}")
"""


@pytest.fixture
def host(project, tmp_path, monkeypatch):
    """A host with a GPU, as far as nvidia-smi says."""
    project.write("tests/gpu/run.py", SCRIPT)
    smi(tmp_path, "echo 'GPU 0: NVIDIA Fake (UUID: GPU-1)'")
    monkeypatch.setenv("PATH", str(tmp_path / "driver"), prepend=os.pathsep)
    return project


def smi(folder: Path, line: str) -> None:
    fakes.program(folder / "driver/nvidia-smi", line)


def run(host, *words: str, here: bool = True, out: Path | None = None) -> gpurun.Ran:
    python = sys.executable if here else ""
    call = gpurun.Call("run", words, python, [Path("packages")], out)
    return gpurun.run(host.root, host.pin, call)


def test_it_runs_on_the_built_wheels_files(host, tmp_path):
    ran = run(host, "--model", "one")
    assert ran.code == 0 and ran.result == host.root / "dist/gpu/v9.9.1/run/evidence.json"
    words = (ran.result.parent / "words.json").read_text()
    assert '"--tree"' in words and '"--site"' in words and '"--model", "one"' in words
    tree = host.root / "dist/gpu/v9.9.1/tree"
    assert "added_step" in (tree / "sglang/srt/runner.py").read_text()
    assert (tree / f"sglang-9.9.1+{fakes.LABEL}.dist-info/patch_queue.json").is_file()
    other = run(host, out=tmp_path / "results/one")
    assert other.result == tmp_path / "results/one/evidence.json" and ran.result.is_file()
    assert str(tmp_path / "results/one/tree") in (other.result.parent / "words.json").read_text()
    failed = run(host, "--fail")
    assert (failed.code, failed.result) == (3, None), "no older result is left"


def test_a_gain_has_what_makes_the_untouched_tree(host):
    host.write("tests/gpu/gain.py", SCRIPT.replace("evidence.json", "gain.json"))
    ran = gpurun.run(host.root, host.pin, gpurun.Call("gain", here=sys.executable))
    words = json.loads((ran.result.parent / "words.json").read_text())
    laid = Path(words[words.index("--untouched") + 1])
    replaced = json.loads((laid / "plan.json").read_text())["replace"]
    assert ran.result.name == "gain.json" and "sglang/srt/runner.py" in replaced
    assert "added_step" not in (laid / "files/sglang/srt/runner.py").read_text()


@pytest.mark.parametrize("said", [None, "exit 9", "exit 0"])
@pytest.mark.parametrize("words", [("gpu",), ("sweep",), ("gpu", "--bench")])
def test_every_command_looks_for_a_gpu_first(host, tmp_path, monkeypatch, tool, words, said):
    smi(tmp_path, str(said))
    if said is None:
        monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with unchanged(host.root):
        code, _, err = tool(host, *words)
        assert code == 1 and "[no-gpu]" in err and "scripts/nox test v9.9.1" in err


@pytest.mark.parametrize(
    ("words", "script"), [(("gpu",), "run"), (("sweep", "--experts"), "sweep_experts")]
)
def test_what_a_script_is_told_by_a_command(host, tmp_path, tool, words, script):
    fakes.harness(host)
    text = SCRIPT.replace("evidence.json", gpurun.RESULTS.get(script, f"{script}.json"))
    host.write(f"tests/gpu/{script}.py", text)
    line = f'echo ran >> {tmp_path}/used; exec {sys.executable} "$@"'
    more = ("--python", fakes.program(tmp_path / "other-python", line), "--out", tmp_path / "out")
    code, _, err = tool(host, *words, "--here", "--site", tmp_path, "--pass=--limit", *more)
    assert code == 0, err
    told = json.loads((tmp_path / "out/words.json").read_text())
    assert told[told.index("--site") + 1] == str(tmp_path) and "--limit" in told
    assert (tmp_path / "used").is_file()
    _, out, _ = tool(host, *words, "--here")
    assert ("1 result: 1 refused" if script == "run" else "sweep_experts.json written") in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "lama"), "'lama': is unknown to tests/gpu"),
        (("--mode", "fast"), "'fast': is unknown to tests/gpu"),
        (("--agree", "--model", "lama"), "'lama'"),
    ],
)
def test_a_model_or_mode_that_is_none_is_refused_first(host, tool, words, says):
    fakes.harness(host)
    with unchanged(host.root):
        code, _, err = tool(host, "gpu", *words)
        assert code == 1 and says in err and "name one of " in err


def test_a_folder_with_files_is_not_cleared(host, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    with pytest.raises(Refused, match="not-empty"):
        run(host, out=tmp_path)
    assert mine.read_text() == "mine"


def test_an_environment_is_made_once(host, monkeypatch, said):
    called = []

    def uv(*words: str) -> None:
        called.append(words[0])
        if words[0] == "venv":
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin/python").symlink_to(sys.executable)

    monkeypatch.setattr(gpurun, "_uv", uv)
    for _ in range(2):
        assert gpurun.run(host.root, host.pin, gpurun.Call("run")).result
    making = "making v9.9.1's own environment, once (about 10 GB"
    assert [text for text in said if making in text] == said[-1:]
    assert called == ["venv", "pip"]
