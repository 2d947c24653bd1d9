"""A table of tests/gpu/sweep_experts.py is the one that the release reads for its shape."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

GPU = Path(__file__).resolve().parents[1] / "gpu"
NAME = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    yield importlib.import_module("sweep_experts")
    sys.modules.pop("sweep_experts", None)


def test_the_release_reads_the_table(sweep, monkeypatch, tmp_path):
    """By its file's name, from the folder of this Triton, for a number of tokens in between too.
    In deterministic mode the release reads none."""
    import triton

    release = sweep.Release()
    (experts, *_) = sweep.SHAPES[512, 512]
    monkeypatch.setattr(release.tables, "get_device_name", lambda: NAME)
    counts = (16, 64)
    rows = [
        {"tokens": count, "default_us": 9.0, "us": {(16, 32, 64, 1, 4, 3): 1.0}} for count in counts
    ]
    folder = tmp_path / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    folder.mkdir(parents=True)
    name = release.file_name(experts)
    assert name == "E=512,N=512,device_name=NVIDIA_H100_80GB_HBM3.json"
    (folder / name).write_text(json.dumps(sweep.table_of([rows], {})))
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path))
    release.tables.get_moe_configs.cache_clear()
    table = release.tables.get_moe_configs(512, 512, None)
    assert table == {count: sweep.as_words((16, 32, 64, 1, 4, 3)) for count in counts}
    shapes = (512, 1024, 2048), (512, 2048, 512)
    tile = release.tables.try_get_optimal_moe_config(*shapes, 10, None, 60)
    assert tile["BLOCK_SIZE_N"] == 32
    release.tables.get_moe_configs.cache_clear()
    on = SimpleNamespace(enable_deterministic_inference=True)
    for asked in ("get_global_server_args", "get_server_args"):
        monkeypatch.setattr(release.tables, asked, lambda: on, raising=False)
    execution = SimpleNamespace(deterministic=on)
    monkeypatch.setattr(release.tables, "get_exec", lambda: execution, raising=False)
    assert release.tables.get_moe_configs(512, 512, None) is None
    release.tables.get_moe_configs.cache_clear()


def test_the_default_of_each_shape_is_a_whole_tile(sweep):
    """table_of writes it where no tile is faster."""
    release = sweep.Release()
    for group in sweep.SHAPES.values():
        for count in sweep.TOKENS:
            default = release.default(count, group[0])
            assert {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"} <= {*default}
