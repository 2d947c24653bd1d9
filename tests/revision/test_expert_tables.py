"""Tables of tiles for routed experts: the release reads those that tests/gpu/sweep_experts.py
writes; the queue's come where the release has none; and what is laid fits the GPU."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from host import late, launches, logged

with late.modules():
    from sglang.srt.prefill_graph.kernels import expert_tiles

NAME = "NVIDIA H100 80GB HBM3"
FILE = "E=512,N=512,device_name=NVIDIA_H100_80GB_HBM3.json"
GOOD, OTHER = (16, 32, 64, 1, 4, 3), (128, 128, 64, 1, 8, 3)
SHARED_MEMORY = 227 << 10  # bytes of one block on compute capability 9.0
UP, DOWN = (512, 1024, 2048), (512, 2048, 512)  # shapes of Qwen3-Next's weights


@pytest.fixture
def sweep():
    yield importlib.import_module("sweep_experts")
    sys.modules.pop("sweep_experts", None)


@pytest.fixture
def release(sweep, monkeypatch, tmp_path):
    """The release's fused experts on an H100, whose folder of tables is empty."""
    found = sweep.Release()
    monkeypatch.setattr(found.tables, "get_device_name", lambda: NAME)
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path / "release"))
    (tmp_path / "release/configs").mkdir(parents=True)
    found.tables.get_moe_configs.cache_clear()
    yield found
    found.tables.get_moe_configs.cache_clear()


@pytest.fixture
def tiles(monkeypatch, tmp_path):
    """The overlay's module, on a GPU, without tables."""
    monkeypatch.setattr(expert_tiles, "TABLES", tmp_path / "queue")
    monkeypatch.setattr(expert_tiles, "_missing", {})
    monkeypatch.setattr(expert_tiles.features, "on_cuda", lambda: True)
    return expert_tiles


def own(triton_version=None):
    import triton

    return f"triton_{(triton_version or triton.__version__).replace('.', '_')}"


def write(folder, words, name=FILE):
    """A table with one tile for 16 and for 64 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"16": words, "64": words}))


def deterministic(release, monkeypatch):
    on = SimpleNamespace(enable_deterministic_inference=True)
    for asked in ("get_global_server_args", "get_server_args"):
        monkeypatch.setattr(release.tables, asked, lambda: on, raising=False)
    execution = SimpleNamespace(deterministic=on)
    monkeypatch.setattr(release.tables, "get_exec", lambda: execution, raising=False)


def test_the_release_reads_the_sweep_s_table(sweep, release, monkeypatch, tmp_path):
    """By its file's name, from the folder of this Triton, for a number of tokens in between too.
    In deterministic mode the release reads none."""
    (experts, *_) = sweep.SHAPES[512, 512]
    rows = [{"tokens": count, "default_us": 9.0, "us": {GOOD: 1.0}} for count in (16, 64)]
    assert release.file_name(experts) == FILE
    folder = tmp_path / "release/configs" / own()
    folder.mkdir()
    (folder / FILE).write_text(json.dumps(sweep.table_of(sweep.chosen([rows]), {})))
    assert release.tables.get_moe_configs(512, 512, None) == dict.fromkeys(
        (16, 64), sweep.as_words(GOOD)
    )
    tile = release.tables.try_get_optimal_moe_config(UP, DOWN, 10, None, 60)
    assert tile["BLOCK_SIZE_N"] == 32
    release.tables.get_moe_configs.cache_clear()
    deterministic(release, monkeypatch)
    assert release.tables.get_moe_configs(512, 512, None) is None


# --- where the release has none


def test_the_queue_s_table_comes_where_the_release_has_none(sweep, release, tiles, tmp_path):
    """The running Triton's first, then the newest. The down projection gets the same, or none."""
    write(tmp_path / "queue" / own("3.1.0"), {"BLOCK_SIZE_M": 1})
    write(tmp_path / "queue" / own("9.10.0"), sweep.as_words(OTHER))
    write(tmp_path / "queue" / own("9.9.0"), {"BLOCK_SIZE_M": 1})
    assert release.tables.get_moe_configs(512, 512, None)[64] == sweep.as_words(OTHER)
    write(tmp_path / "queue" / own(), sweep.as_words(GOOD))
    write(tmp_path / "queue" / own(), {"BLOCK_SIZE_M": 1}, FILE.replace(".json", "_down.json"))
    release.tables.get_moe_configs.cache_clear()
    config, (down, _) = release.tables.try_get_optimal_moe_config(
        UP, DOWN, 10, None, 60, return_down_config=True
    )
    assert config == sweep.as_words(GOOD) and down in (None, config)
    assert release.tables.get_moe_configs(512, 512, "fp8_w8a8") is None


@pytest.mark.parametrize("version", [None, "3.3.1", "3.5.1"])
def test_a_table_of_the_release_comes_first(sweep, release, tiles, tmp_path, version):
    """For any Triton: up to 0.5.11 the release's own search ends at 3.4.0."""
    write(tmp_path / "queue" / own(), sweep.as_words(OTHER))
    write(tmp_path / "release/configs" / own(version), sweep.as_words(GOOD))
    assert release.tables.get_moe_configs(512, 512, None)[16] == sweep.as_words(GOOD)


def test_a_model_without_experts_does_not_load_it(release):
    """So that its GPU results hold when the overlay's module changes."""
    assert "expert_tiles" not in vars(release.tables)


def test_a_fused_shared_expert_takes_the_routed_experts_table(sweep, release, tiles, tmp_path):
    """Of the release too; one for all experts comes first."""
    write(tmp_path / "queue" / own(), sweep.as_words(OTHER))
    assert release.tables.get_moe_configs(513, 512, None)[16] == sweep.as_words(OTHER)
    for name, tile in ((FILE, GOOD), (FILE.replace("512", "513", 1), OTHER)):
        write(tmp_path / "release/configs" / own(), sweep.as_words(tile), name)
        release.tables.get_moe_configs.cache_clear()
        assert release.tables.get_moe_configs(513, 512, None)[16] == sweep.as_words(tile)


def test_deterministic_mode_reads_none(sweep, release, tiles, monkeypatch, tmp_path, caplog):
    deterministic(release, monkeypatch)
    write(tmp_path / "queue" / own(), sweep.as_words(GOOD))
    assert release.tables.get_moe_configs(512, 512, None) is None
    with caplog.at_level(logging.WARNING):
        tile = release.tables.try_get_optimal_moe_config(UP, DOWN, 10, None, 60)
    assert tile == release.default(60, sweep.SHAPES[512, 512][0])
    assert not notices(caplog)


# --- the notice


def notices(caplog):
    return logged.texts(caplog, loggers=expert_tiles.__name__)


def asked(release, caplog, up=UP, down=DOWN, top_k=10):
    with caplog.at_level(logging.WARNING):
        for tokens in (1, 60, 4096):
            release.tables.try_get_optimal_moe_config(
                up, down, top_k, None, tokens, return_down_config=True
            )
    return notices(caplog)


def test_a_shape_without_a_table_is_reported_once(
    sweep, release, tiles, revision, tmp_path, caplog
):
    """With a command that sweep_experts.py understands, and where the release reads its file."""
    (notice,) = asked(release, caplog)
    assert f"scripts/nox sweep v{revision} --experts --here --python {sys.executable} " in notice
    (shape,) = re.findall(r"--pass=--shape --pass=([\w,]+);", notice)
    (experts,) = sweep.shape(shape)
    assert (experts.experts, experts.size, experts.hidden, experts.top_k) == (512, 512, 2048, 10)
    assert experts.gated and release.file_name(experts) == FILE
    (place,) = re.findall(r"copy the table to (\S+)$", notice)
    write(Path(place).parent, sweep.as_words(GOOD), Path(place).name)
    release.tables.get_moe_configs.cache_clear()
    assert release.tables.get_moe_configs(512, 512, None)[16] == sweep.as_words(GOOD)
    assert not asked(release, caplog)[1:]


def test_experts_without_a_gate_are_reported_as_such(sweep, release, tiles, caplog):
    (notice,) = asked(release, caplog, (128, 1856, 2688), (128, 2688, 1856), 6)
    (experts,) = sweep.shape(re.findall(r"--pass=([\w,]+);", notice)[0])
    assert not experts.gated and experts.size == 1856


@pytest.mark.parametrize("where", ["another rank", "no NVIDIA GPU"])
def test_nothing_is_reported_by(where, release, tiles, monkeypatch, caplog):
    if where == "another rank":
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    else:
        monkeypatch.setattr(tiles.features, "on_cuda", lambda: False)
    assert asked(release, caplog) == []


# --- what is laid


@functools.cache
def compiled(invoke, tile, even):
    """The kernel as the release's `invoke` launches it on an H100, compiled by its own Triton: the
    up projection, as the down projection differs behind the loop alone.

    even: whether BLOCK_SIZE_K divides the inner dimension.
    """
    import triton.language as tl

    words, launched = dict(tile), []
    top_k, tokens, width = 8, 64, 1024
    inner = words["BLOCK_SIZE_K"] * 16 + (0 if even else words["BLOCK_SIZE_K"] // 2)

    def meta(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    room = invoke.__globals__
    with pytest.MonkeyPatch.context() as patched:
        kernel = launches.Recorder(room["fused_moe_kernel"], launched)
        patched.setitem(room, "fused_moe_kernel", kernel)
        if "is_arch_support_pdl" in room:  # whether kernels of a stream may overlap, as on an H100
            patched.setitem(room, "is_arch_support_pdl", lambda: True)
        invoke(
            *(meta(tokens, inner), meta(16, width, inner), None),
            *(meta(tokens, top_k, width), None, None, None),
            *(meta(tokens, top_k, dtype=torch.float32), meta(tokens, top_k, dtype=torch.int32)),
            *(meta(1024, dtype=torch.int32), meta(64, dtype=torch.int32)),
            *(meta(1, dtype=torch.int32), False, top_k, words, tl.bfloat16),
            *(False, False, False, False, False),
            filter_expert=True,
        )
    (launch,) = launched
    return launch.compiled(90)


def faults(sweep, release, file):
    """What is wrong with a table."""
    shape = re.fullmatch(r"E=(\d+),N=(\d+),device_name=NVIDIA_[^,]+\.json", file.name)
    group = shape and sweep.SHAPES.get((int(shape[1]), int(shape[2])))
    if not group:
        return ["its name is that of no published model's shape"]
    table = json.loads(file.read_text())
    if [*table] != [str(count) for count in sweep.TOKENS]:
        return ["it does not name each number of tokens"]
    tiles = {tuple(tile.items()) for tile in table.values()}
    return [fault for tile in sorted(tiles) for fault in faults_of(sweep, release, group, tile)]


def faults_of(sweep, release, group, tile):
    """What is wrong with a tile for these experts."""
    words = dict(tile)
    if not {*words} <= {*importlib.import_module("expert_kernels").FIELDS} or len(words) < 4:
        return [f"{words} is no tile"]
    found, block = [], words["BLOCK_SIZE_K"]
    sizes = {size % block == 0 for experts in group for size in (experts.hidden, experts.size)}
    for even in sorted(sizes):
        made = compiled(release.module.invoke_fused_moe_kernel, tile, even)
        if made.shared > SHARED_MEMORY:
            found.append(f"{words} takes {made.shared} bytes of shared memory")
        if made.miscompiled:
            found.append(f"{words} is miscompiled")
    return found


def test_what_is_laid_fits_and_is_chosen(sweep, monkeypatch):
    """Where the release has a table of its own for the shape and the GPU, that is chosen."""
    release = sweep.Release()
    for file in sorted(expert_tiles.TABLES.glob("*/*")):
        assert not faults(sweep, release, file), file
        experts, size, device = re.findall(r"=([^,]+?)(?=,|\.json)", file.name)
        monkeypatch.setattr(release.tables, "get_device_name", lambda: device)
        release.tables.get_moe_configs.cache_clear()
        assert release.tables.get_moe_configs(int(experts), int(size), None)
    release.tables.get_moe_configs.cache_clear()
