"""Tables of tiles for routed experts: a tile is never slower than the default, serves all hidden
sizes of a table, and each number of tokens has an entry."""

from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace

import gpumodules
import pytest

ONE, TWO, THREE = ((m, 64, 64, 1, 4, 3) for m in (16, 32, 64))


sweep_experts = gpumodules.fixture("sweep_experts")


def row(tokens: int, default: float | None, **us: float) -> dict:
    tiles = {{"one": ONE, "two": TWO, "three": THREE}[name]: value for name, value in us.items()}
    return {"tokens": tokens, "default_us": default, "us": tiles}


def test_what_enables_something_is_a_constant_of_a_kernel(sweep_experts):
    """Releases give enable_fused_moe_sum_all_reduce to the kernel; Triton refuses other objects."""
    options = sweep_experts.Off()
    assert options.enable_fused_moe_sum_all_reduce is False
    assert options().moe.enable_fused_moe_sum_all_reduce is False


@pytest.mark.parametrize("group", [(512, 512), (256, 512), (128, 1856)])
def test_every_launch_that_is_timed_is_compiled_before(sweep_experts, group):
    """At a few tokens too, where moe_align_block_size pads by another rule: a GPU run compiled 72
    tiles one after the other there."""

    def kernel(experts, tile, count):
        """What of a launch Triton and moe_align_block_size go by (0.5.12.post1)."""
        routed = count * experts.top_k
        if routed < experts.experts + 1:
            padded = routed * tile[0]
        else:
            padded = routed + (experts.experts + 1) * (tile[0] - 1)
        return tile, routed % 16 == 0, padded % 16 == 0

    [experts, *_] = sweep_experts.SHAPES[group]
    work = sweep_experts.variants(experts, sweep_experts.TOKENS)
    compiled = {kernel(experts, *one) for one in work}
    for count in sweep_experts.TOKENS:
        tiles = sweep_experts.candidates(count, experts)
        assert {kernel(experts, tile, count) for tile in tiles} <= compiled
    assert len(work) < 600


def test_the_fastest_tile_is_chosen(sweep_experts):
    assert sweep_experts.chosen([[row(16, 100, one=90, two=50)]]) == {16: TWO}


def test_no_tile_is_slower_than_the_default(sweep_experts):
    rows = [row(16, 40, one=90, two=50), row(32, 60, one=90, two=50)]
    assert sweep_experts.chosen([rows]) == {32: TWO}
    defaults = {16: {"BLOCK_SIZE_M": 16}, 32: {"BLOCK_SIZE_M": 1}}
    table = sweep_experts.table_of(sweep_experts.chosen([rows]), defaults)
    assert table == {"16": {"BLOCK_SIZE_M": 16}, "32": sweep_experts.as_words(TWO)}


def test_few_tiles_are_chosen_and_the_faster_one_of_them(sweep_experts):
    """ONE serves all numbers; where it is too far from the best, another one comes."""
    rows = [row(16, 100, one=51, two=50), row(32, 100, one=50, two=80), row(64, 100, one=50)]
    assert sweep_experts.chosen([rows]) == {16: ONE, 32: ONE, 64: ONE}
    rows[2] = row(64, 100, one=60, two=50)
    assert sweep_experts.chosen([rows]) == {16: TWO, 32: ONE, 64: TWO}


def test_a_table_serves_all_hidden_sizes(sweep_experts):
    narrow, wide = [row(16, 100, one=50, two=51)], [row(16, 100, one=80, two=50)]
    assert sweep_experts.chosen([narrow, wide]) == {16: TWO}
    assert sweep_experts.chosen([narrow, [row(16, 49, one=48, two=50)]]) == {16: ONE}
    assert sweep_experts.chosen([narrow, [row(16, 100, three=50)]]) == {}


def test_a_hidden_size_that_was_not_timed_at_a_number_has_no_say_there(sweep_experts):
    narrow = [row(16, 100, one=50, two=51), row(32, 100, one=50, two=60)]
    assert sweep_experts.chosen([narrow, [row(16, 100, one=80, two=50)]]) == {16: TWO, 32: ONE}


@pytest.mark.parametrize(("enough", "replays"), [(99.0, 1), (100.0, 4)])
def test_a_slow_graph_is_replayed_once(sweep_experts, monkeypatch, enough, replays):
    done = []
    event = SimpleNamespace(record=bool, synchronize=bool, elapsed_time=lambda _: 0.1)
    cuda = SimpleNamespace(Event=lambda enable_timing: event)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    graph = SimpleNamespace(replay=lambda: done.append(1))
    assert sweep_experts.replayed(graph, 3, enough) == 100.0
    assert len(done) == replays


def test_no_miscompiled_tile_is_chosen(sweep_experts):
    """Nor one that would come in its place; what is not chosen is not looked at."""
    rows = [row(16, 100, one=50, two=60, three=90), row(32, 40, one=90, two=60, three=30)]
    asked = []

    def miscompiled(tiles):
        asked.append(tiles)
        return tiles & {ONE}

    assert sweep_experts.chosen_right([rows], miscompiled) == {16: TWO, 32: THREE}
    assert asked == [{ONE, THREE}, {TWO}]


def test_a_tile_serves_where_none_is_near_the_best_of_each_hidden_size(sweep_experts):
    narrow, wide = [row(16, 100, one=50, two=70)], [row(16, 200, one=99, two=60)]
    assert sweep_experts.chosen([narrow, wide]) == {16: TWO}


def test_a_host_without_a_gpu_is_refused(sweep_experts, monkeypatch, tmp_path):
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(hip=None)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(SystemExit, match="no NVIDIA GPU"):
        sweep_experts.main(["--out", str(tmp_path), "--inside"])


def test_only_what_was_near_an_anchor_is_timed_beside_it(sweep_experts):
    anchors = [row(16, 100, one=50, two=60), row(128, 100, two=90, three=50)]
    assert sweep_experts.promising(anchors, 64) == [ONE, TWO, THREE]
    assert sweep_experts.promising(anchors, 8) == [ONE, TWO]
    assert sweep_experts.promising(anchors, 512) == [THREE]


@pytest.mark.parametrize("text", ["512", "512,511", "a,b", "1,2,3"])
def test_a_shape_that_is_none_is_refused(sweep_experts, text):
    with pytest.raises(argparse.ArgumentTypeError, match="is none of 512,1024"):
        sweep_experts.shape(text)


def test_another_model_s_shape_is_taken(sweep_experts):
    assert sweep_experts.shape("512,512") == sweep_experts.SHAPES[512, 512]
    (own,) = sweep_experts.shape("64,1408,2048,6")
    assert (own.experts, own.size, own.hidden, own.top_k) == (64, 1408, 2048, 6)
    (plain,) = sweep_experts.shape("128,1856,2688,6,relu2")
    assert own.gated and not plain.gated
