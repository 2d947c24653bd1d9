"""Tables of tiles for routed experts: for all hidden sizes, never slower than the default."""

import argparse
from types import SimpleNamespace

import gpumodules
import pytest

ONE, TWO, THREE = ((m, 64, 64, 1, 4, 3) for m in (16, 32, 64))


sweep_experts = gpumodules.fixture("sweep_experts")


def row(tokens: int, default: float | None, **us: float) -> dict:
    tiles = {{"one": ONE, "two": TWO, "three": THREE}[name]: value for name, value in us.items()}
    return {"tokens": tokens, "default_us": default, "us": tiles}


NEAR, FAR = row(16, 100, one=51, two=50), row(32, 100, one=50, two=80)
OTHER, SLOW = row(16, 100, one=50, two=51), row(16, 100, one=80, two=50)


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([[row(16, 100, one=90, two=50)]], {16: TWO}),
        # no tile that is slower than the default
        ([[row(16, 40, one=90, two=50), row(32, 60, one=90, two=50)]], {32: TWO}),
        # ONE serves all numbers; where it is too far from the best, another one comes
        ([[NEAR, FAR, row(64, 100, one=50)]], {16: ONE, 32: ONE, 64: ONE}),
        ([[NEAR, FAR, row(64, 100, one=60, two=50)]], {16: TWO, 32: ONE, 64: TWO}),
        # one table serves all hidden sizes
        ([[OTHER], [SLOW]], {16: TWO}),
        ([[OTHER], [row(16, 49, one=48, two=50)]], {16: ONE}),
        ([[OTHER], [row(16, 100, three=50)]], {}),
        ([[row(16, 100, one=50, two=70)], [row(16, 200, one=99, two=60)]], {16: TWO}),
        # a hidden size that was not timed at a number has no say there
        ([[OTHER, row(32, 100, one=50, two=60)], [SLOW]], {16: TWO, 32: ONE}),
    ],
)
def test_which_tiles_are_chosen(sweep_experts, sizes, chosen):
    assert sweep_experts.chosen(sizes) == chosen
    defaults = {tokens: {"BLOCK_SIZE_M": 1} for tokens in (16, 32, 64)}
    table = sweep_experts.table_of(chosen, defaults)
    own = {str(tokens): sweep_experts.as_words(tile) for tokens, tile in chosen.items()}
    assert table == {str(tokens): one for tokens, one in defaults.items()} | own


def test_no_miscompiled_tile_is_chosen(sweep_experts):
    """Nor one that would come in its place; what is not chosen is not looked at."""
    rows = [row(16, 100, one=50, two=60, three=90), row(32, 40, one=90, two=60, three=30)]
    asked = []

    def miscompiled(tiles):
        asked.append(tiles)
        return tiles & {ONE}

    assert sweep_experts.chosen_right([rows], miscompiled) == {16: TWO, 32: THREE}
    assert asked == [{ONE, THREE}, {TWO}]


def test_only_what_was_near_an_anchor_is_timed_beside_it(sweep_experts):
    anchors = [row(16, 100, one=50, two=60), row(128, 100, two=90, three=50)]
    assert sweep_experts.promising(anchors, 64) == [ONE, TWO, THREE]
    assert sweep_experts.promising(anchors, 8) == [ONE, TWO]
    assert sweep_experts.promising(anchors, 512) == [THREE]


def test_another_model_s_shape_is_taken_and_what_is_none_is_refused(sweep_experts):
    for text in ("512", "512,511", "a,b", "1,2,3"):
        with pytest.raises(argparse.ArgumentTypeError, match="is none of 512,1024"):
            sweep_experts.shape(text)
    assert sweep_experts.shape("512,512") == sweep_experts.SHAPES[512, 512]
    (own,) = sweep_experts.shape("64,1408,2048,6")
    assert (own.experts, own.size, own.hidden, own.top_k) == (64, 1408, 2048, 6)
    (plain,) = sweep_experts.shape("128,1856,2688,6,relu2")
    assert own.gated and not plain.gated


def test_a_sweep_ends_in_time_with_the_tiles_that_were_timed(sweep_experts, monkeypatch, capsys):
    """A sweep that could not look at the clock was killed without a table."""
    clock = iter(range(1000))

    class Batch:
        def __init__(self, *given):
            self.checker = lambda: lambda tile: ""
            self.timer = lambda count: lambda words, replays=3, best=0: float(sum(words.values()))

    release = SimpleNamespace(default=lambda count, experts: {"BLOCK_SIZE_M": 1000})
    monkeypatch.setattr(sweep_experts, "Batch", Batch)
    monkeypatch.setattr(sweep_experts, "Release", lambda: release)
    monkeypatch.setattr(sweep_experts, "on_hopper", lambda: False)
    monkeypatch.setattr(sweep_experts.time, "time", lambda: next(clock))
    [experts, *_] = sweep_experts.SHAPES[512, 512]
    (row,) = sweep_experts.sweep(experts, [16, 128, 512], 20)
    assert row["tokens"] == 16 and 0 < len(row["us"]) < len(sweep_experts.candidates(16, experts))
    assert "no time left for 512 tokens" in capsys.readouterr().out


def test_a_sweep_on_hopper_tries_known_tiles_alone(sweep_experts, monkeypatch):
    tried = {}
    for hopper in (False, True):
        monkeypatch.setattr(sweep_experts, "on_hopper", lambda hopper=hopper: hopper)
        [experts, *_] = sweep_experts.SHAPES[512, 512]
        anchors = sweep_experts.ANCHORS
        tried[hopper] = {t for count in anchors for t in sweep_experts.candidates(count, experts)}
    assert tried[True] == {*sweep_experts.HOPPER} < tried[False]
