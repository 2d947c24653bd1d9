"""tests/gpu/kits.py: a release's own attention cases, on two trees."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "gpu"
KIT = "sglang/test/kits/attention_unittest"
METHOD = """
    from dataclasses import dataclass

    LARGEST = {largest}

    @dataclass(frozen=True)
    class Mode:
        decode: bool

        def is_decode(self):
            return self.decode

    @dataclass(frozen=True)
    class Case:
        name: str
        forward_mode: Mode
        num_heads: int = 2
        head_dim: int = 16
        state_size: int = 16
        n_groups: int = 1
        mamba_chunk_size: int = 16
        prefix_lens: tuple = (0,)
        extend_lens: tuple = (3,)

        @property
        def num_input_tokens(self):
            return sum(self.extend_lens)

    def make_{kind}_cases(backend):
        assert backend == "triton"
        return Case("prompt", Mode(False)), Case("step", Mode(True))

    def run_{kind}_attention_case(test, case, max_context_len=64):
        print("said on standard output")
        assert sum(case.extend_lens) < max_context_len
        test.assertLess(case.head_dim, LARGEST)
"""
RUNNERS = """
    def run(test, case, *, breakable, static_num_tokens, max_context_len=64):
        assert static_num_tokens > case.num_input_tokens < max_context_len
        assert breakable in (True, False) and not case.forward_mode.is_decode()

    run_mamba2_split_op_extend_case = run_gdn_split_op_extend_case = run
"""


@pytest.fixture
def kits(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    return importlib.import_module("kits")


def tree(at: Path, largest: int) -> Path:
    """A tree whose kit's cases pass with heads smaller than this."""
    texts = {f"attention_methods/{kind}_attention.py": METHOD for kind in ("mamba2", "gdn")}
    for name, text in (texts | {"runner_modes/split_op_runner.py": RUNNERS}).items():
        file = at / KIT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        kind = file.name.partition("_")[0]
        made = text.replace("{largest}", str(largest)).replace("{kind}", kind)
        file.write_text(textwrap.dedent(made))
    return at


def ask(kits, tmp_path: Path, sglang: Path, limit: float = 60) -> dict[str, str]:
    place = kits.launch.Place((sglang,), tmp_path)
    place.scratch.mkdir(exist_ok=True)
    options = argparse.Namespace(kind=["mamba2", "gdn"], limit=limit)
    return kits.ask(place, "patched", options)


def test_a_case_that_the_untouched_tree_alone_passes_is_broken(kits, tmp_path, capsys):
    found = {
        "untouched": ask(kits, tmp_path, tree(tmp_path / "one", 100)),
        "patched": ask(kits, tmp_path, tree(tmp_path / "two", 70)),
    }
    assert len(found["untouched"]) == 4 + 4 + 6 and not any(found["untouched"].values())
    assert kits.broken(found["untouched"], found["patched"]) == ["mamba2 eager heads of 80"]
    assert kits.broken(found["untouched"], found["untouched"]) == []
    assert kits.broken(found["patched"], found["untouched"]) == []
    capsys.readouterr()
    kits.show(found)
    said = capsys.readouterr().out.splitlines()
    assert "mamba2 eager             4 of 4       3 of 4" in said
    assert "FAIL mamba2 eager heads of 80: AssertionError: 80 not less than 70" in said
    assert max(map(len, said)) <= 80


def test_a_case_that_no_longer_runs_is_broken(kits):
    assert kits.broken({"gdn eager one": ""}, {}) == ["gdn eager one"]


def test_a_release_without_cases_says_so(kits, tmp_path, capsys):
    (tmp_path / "old/sglang").mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        ask(kits, tmp_path, tmp_path / "old")
    assert stop.value.code == 3 and "brings no attention cases" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise RuntimeError('no device')", "exit code 1; RuntimeError: no device"),
        ("import missing", "exit code 1; ModuleNotFoundError: No module named 'missing'"),
        ("import time; time.sleep(60)", "not done in 2 s; no word of why"),
    ],
)
def test_a_tree_that_does_not_answer_is_named(kits, tmp_path, text, why):
    file = tree(tmp_path / "one", 100) / KIT / "runner_modes/split_op_runner.py"
    file.write_text(text)
    with pytest.raises(SystemExit, match=f"the patched tree's cases: {why}"):
        ask(kits, tmp_path, tmp_path / "one", limit=2)
