"""What tests/gpu/kits.py asks of the attention cases that a release brings."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import kits
import kits_cases

pytestmark = pytest.mark.revision(">=0.5.13,<0.5.24")


@pytest.fixture(scope="module")
def runners():
    return importlib.import_module(f"{kits_cases.KIT}.runner_modes.split_op_runner")


@pytest.mark.parametrize("kind", kits.KINDS)
def test_a_kind_has_cases_in_every_way(runners, kind):
    method = importlib.import_module(f"{kits_cases.KIT}.attention_methods.{kind}_attention")
    names = [name for name, _ in kits_cases.cases(kind, method, runners)]
    ways = [name.split()[1] for name in names]
    assert {"eager", "breakable", "piecewise"} == {*ways} and len(names) == len({*names})
    assert ways.count("breakable") == ways.count("piecewise") >= 3
    split = getattr(runners, f"run_{kind}_split_op_extend_case")
    assert {"breakable", "static_num_tokens"} <= inspect.signature(split).parameters.keys()


def test_mamba2_has_the_heads_of_published_models(runners):
    method = importlib.import_module(f"{kits_cases.KIT}.attention_methods.mamba2_attention")
    for (case, words), size in zip(
        kits_cases.published(method), kits_cases.MAMBA2_HEADS.values(), strict=True
    ):
        assert (case.head_dim, case.state_size, case.num_heads % case.n_groups) == (size, 128, 0)
        assert max(case.extend_lens) > case.mamba_chunk_size
        assert max(case.seq_lens) < words["max_context_len"]
        run = method.run_mamba2_attention_case
        assert words.keys() <= inspect.signature(run).parameters.keys()
