"""tests/gpu/break_memory.py: what it reads from an engine's log, and how one tree holds in three
ways."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "gpu"
NAME = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"
WEAK = "def _weak_ref_if_tensor(value):\n    return 'weak'\n"
TREES = {
    "untouched": WEAK + "def kept(value):\n    return _weak_ref_if_tensor(value)\n",
    "patched": WEAK
    + "class OwnMemory:\n    def __init__(self, pool): self.own = pool\n"
    + "def holder(capture):\n    return lambda value: 'by rule'\n"
    + "def kept(value):\n    OwnMemory(1)\n    return holder(None)(value)\n",
    "branch": "_own_memory_var = None\n"
    + "class OwnMemory:\n    of_pool = staticmethod(lambda pool: None)\n"
    + "def _weak_ref_if_tensor(value):\n"
    + "    own = OwnMemory.of_pool(1)\n"
    + "    return 'weak' if own and own.owns(value) else value\n"
    + "def kept(value):\n    return _weak_ref_if_tensor(value)\n",
}
LOG = """
[..] Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8, 12], avail mem=9.00 GB
[..] Capture target prefill CUDA graph end. elapsed=3.25 s, mem usage=1.50 GB, avail mem=7.50 GB.
"""  # noqa: E501
ENGINE = f"""
import os
class Engine:
    def __init__(self, **words):
        assert words["attention_backend"] == os.environ.get("ASKED", "flashinfer")
        print({LOG!r}.replace("3.25", str(words["mem_fraction_static"])))
    def generate(self, **words): pass
    def shutdown(self): pass
"""


@pytest.fixture
def break_memory(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return importlib.import_module("break_memory")


def tree(folder: Path, kind: str) -> Path:
    file = folder / Path(*NAME.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    for parent in file.relative_to(folder).parents:
        (folder / parent / "__init__.py").touch()
    (folder / "sglang/__init__.py").write_text(ENGINE)
    file.write_text(TREES[kind])
    return folder


@pytest.mark.parametrize(
    "kind, way, kept",
    [
        ("untouched", "main", "weak"),
        ("untouched", "strong", "me"),
        ("patched", "main", "weak"),
        ("patched", "strong", "me"),
        ("patched", "ours", "by rule"),
        ("branch", "main", "weak"),
        ("branch", "strong", "me"),
        ("branch", "ours", "me"),
    ],
)
def test_one_tree_holds_in_three_ways(tmp_path, kind, way, kept):
    path = os.pathsep.join(map(str, (GPU / "holding", tree(tmp_path, kind))))
    made = "type('T', (str,), {'device': type('D', (), {'type': 'cuda'})})('me')"
    code = f"import {NAME} as module; print(module.kept({made}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "BREAK_HOLDS": way},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == kept, done.stderr


def test_an_untouched_tree_has_no_rule_to_measure(tmp_path):
    path = os.pathsep.join(map(str, (GPU / "holding", tree(tmp_path, "untouched"))))
    done = subprocess.run(
        [sys.executable, "-c", f"import {NAME}"],
        env=os.environ | {"PYTHONPATH": path, "BREAK_HOLDS": "ours"},
        capture_output=True,
        text=True,
    )
    assert "is untouched: lay the queue or the branch on it" in done.stderr


def test_what_a_log_says_of_the_graph(break_memory):
    assert break_memory.captured(LOG) == break_memory.Captured(3.25, 1.5, (4, 8, 12))
    assert break_memory.captured(LOG.replace("target ", "")) is not None
    assert break_memory.captured("Disable prefill CUDA graph") is None


def test_a_fault_is_told_beside_the_cost(break_memory):
    checks = [{"what": "an input", "good": True}, {"what": "an output", "good": False}]
    row = {"way": "main", "captured": None, "lifetimes": checks, "reuse": [], "llama": "no answers"}
    assert break_memory.told(row) == "| main | 0 sizes | none | none | an output | no answers |"
    row |= {"lifetimes": checks[:1], "llama": "3 of 4 tokens alike"}
    assert break_memory.told(row).endswith("| all held | 3 of 4 tokens alike |")
    row["reuse"] = [{"origin": "ordinary memory", "replays": {"A alone": True, "B": False}}]
    assert break_memory.told(row).endswith("| inputs of ordinary memory | 3 of 4 tokens alike |")


@pytest.mark.parametrize("attention", ["flashinfer", "fa3"])
def test_a_row_of_each_way(break_memory, tmp_path, monkeypatch, capsys, attention):
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho 0, GPU-1, H200, 580, 143771, 9.0\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ASKED", attention)
    words = ["--out", str(tmp_path / "out"), "--tree", str(tree(tmp_path / "tree", "patched"))]
    words += ["--attention", attention]
    asked = break_memory.asking(tmp_path, break_memory._options(words))
    assert asked[asked.index("--attention") + 1] == attention
    assert break_memory.main([*words, "--fraction", "0.5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"| {way} | 3 sizes | 1.50 GB | 0.5 s | not checked | no answers |"
        for way in ("main", "strong", "ours")
    ]
    rows = json.loads((tmp_path / "out/break_memory.json").read_text())
    assert [row["captured"]["sizes"] for row in rows] == [[4, 8, 12]] * 3
    config = json.loads((tmp_path / "out/scratch/qwen3-8b/config.json").read_text())
    assert config == importlib.import_module("subjects").SUBJECTS["qwen3"].config
    assert config["model_type"] == "qwen3" and config["num_hidden_layers"] == 36


def test_what_was_measured_stays_where_the_next_way_is_ended(break_memory, tmp_path, monkeypatch):
    def ended(place, folder, way, options):
        if way == "strong":
            raise KeyboardInterrupt
        return {"way": way, "captured": None, "lifetimes": [], "reuse": [], "llama": ""}

    monkeypatch.setattr(break_memory, "_way", ended)
    words = ["--out", str(tmp_path / "out"), "--tree", str(tree(tmp_path / "tree", "patched"))]
    with pytest.raises(KeyboardInterrupt):
        break_memory.main(words)
    rows = json.loads((tmp_path / "out/break_memory.json").read_text())
    assert [row["way"] for row in rows] == ["main"]


def test_what_the_llama_answers_is_counted_beside_eager_prefill(break_memory, tmp_path):
    assert break_memory.alike(tmp_path) == "no answers"
    for mode, last in (("breakable", 9), ("reference", 8)):
        answer = {"tokens": [5, 6, last], "logprobs": [-1.0] * 3, "best": [[-1.0, -3.0]] * 3}
        one = {"single-3": {"answers": [answer]}}
        text = json.dumps({"passes": {"cold": one, "sizes": one}})
        (tmp_path / f"llama.{mode}.json").write_text(text)
    assert break_memory.alike(tmp_path) == "4 of 6 tokens alike"


def test_the_llama_s_engines_hold_in_the_way_that_is_measured(break_memory, tmp_path):
    """run.py makes their path anew, and leaves BREAK_HOLDS in their environment."""
    made = tree(tmp_path / "tree", "patched")
    options = break_memory._options(["--tree", str(made), "--site", str(tmp_path)])
    script, *words = break_memory.asking(tmp_path / "out", options)
    run = importlib.import_module("run")
    assert script == str(GPU / "run.py")
    place = run.commandline.place_of(run._options(words))
    code = f"import {NAME} as module; print(module.kept('text'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=place.environment(BREAK_HOLDS="strong"),
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "text", done.stderr
