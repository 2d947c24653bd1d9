"""tests/gpu/agree.py: what two engines of one tree, and a tree and its release, must have in
common; tests/gpu/sweep.py's order."""

import gpumodules
import pytest

agree, sweep = map(gpumodules.fixture, ("agree", "sweep"))


def answers(*tokens, off=0.0):
    """One pass of one call for each number of tokens: calls of one prompt, but for the last one,
    which has two."""

    def answer(token):
        return {"tokens": [token] * 8, "logprobs": [-1.0 + off] * 8, "best": [[-1.0, -3.0]] * 8}

    calls = {f"single-{token}": {"answers": [answer(token)]} for token in tokens}
    return {"cold": calls | {"batch-2": {"answers": [answer(1), answer(2)]}}}


def test_two_engines_have_the_same_bits_in_calls_of_one_prompt(agree):
    assert agree.same_bits(answers(3, 4), answers(3, 4)).good
    assert not agree.same_bits(answers(3, 4), answers(3, 4, off=1e-7)).good
    other = answers(3, 4)
    other["cold"]["batch-2"]["answers"][0]["logprobs"][0] -= 0.01
    assert agree.same_bits(answers(3, 4), other).good, "requests of one call meet in other forwards"


@pytest.mark.parametrize("off, good", [(0.01, True), (0.2, False)])
def test_the_patched_answers_are_held_against_every_reference(off, good, agree):
    same = (agree.UNTOUCHED, agree.PATCHED, agree.AGAIN)
    passes = {name: answers(3) for name in same} | {agree.RELEASE_SCAN: answers(3, off=off)}
    found = agree.compared("nemotron-h", passes)
    assert {check.what: check.good for check in found[:2]} == {
        "agrees with untouched, cold": True,
        "agrees with release-scan, cold": good,
    }
    assert [check.good for check in found[2:]] == [True]


@pytest.mark.parametrize(
    ("model", "reference", "off", "good"),
    [
        ("nemotron-h", "untouched", 0.025, True),
        ("nemotron-h", "untouched", 0.031, False),
        ("nemotron-h", "release-scan", 0.025, False),
        ("llama", "untouched", 0.025, False),
    ],
)
def test_other_kernels_may_be_apart_as_far_as_rounding_takes_them(
    agree, model, reference, off, good
):
    names = (reference, agree.PATCHED, agree.AGAIN)
    passes = {name: answers(3, 4) for name in names} | {reference: answers(3, 4, off=off)}
    assert [check.good for check in agree.compared(model, passes)] == [good, True]


def test_tiles_are_ranked_over_all_cases_and_what_does_not_fit_is_left_out(sweep):
    us = [[9.0, 9.0], [1.0, 4.0], [2.0, 2.0], [1.5, None]]
    rows = [{"tile": {"a": number} if number else {}, "us": each} for number, each in enumerate(us)]
    ranked = list(sweep.ranked({"tiles": rows}))
    assert sorted(row["tile"]["a"] for _, row in ranked) == [1, 2]
    assert [round(score, 3) for score, _ in ranked] == [1.414, 1.414]
    rows[1]["us"] = [1.0, 2.5]
    assert [row["tile"]["a"] for _, row in sweep.ranked({"tiles": rows})] == [1, 2]


def test_no_tile_is_proposed_at_which_triton_miscompiles_the_kernel(sweep, capsys):
    """What it would have gained is printed behind the proposals."""
    rows = [
        {"tile": {"a": number}, "us": us, "miscompiled": number > 1}
        for number, us in enumerate(([4.0, 2.0], [1.0, 1.0], [2.0, 2.0]), 1)
    ]
    found = {"layer": {"name": "one"}, "kernel": "chunk_scan", "tiles": rows}
    assert [(score, row["tile"]["a"]) for score, row in sweep.ranked(found)] == [(1.0, 1)]
    sweep.show(found)
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["1.000", "0.354"]


LOOP = """
.L_x_1:
  /*10*/ HGMMA.64x64x16.F32.BF16 R24, {left}, gdesc[UR12].tnspB, R24, gsb0 ;
  /*20*/ WARPGROUP.DEPBAR.LE gsb0, {wait} ;
  /*30*/ @P0 BRA `(.L_x_{label}) ;
.L_x_2:
"""


@pytest.mark.parametrize(
    "left, wait, label, found",
    [
        ("R56", "0x1", 1, 1),
        ("R56", "0x0", 1, 0),  # waited for
        ("gdesc[UR8]", "0x1", 1, 0),  # from shared memory
        ("R56", "0x1", 2, 0),  # no loop
    ],
)
def test_products_under_way_where_a_loop_begins_anew(left, wait, label, found, sweep):
    code = LOOP.format(left=left, wait=wait, label=label)
    assert len(sweep.machine_code.products_over_back_edges(code)) == found


def test_an_autotuned_kernel_is_launched_with_the_tiles_that_are_swept(sweep):
    """From 0.5.20 on the release's kernels choose their tiles themselves: "got multiple values for
    keyword argument 'BLOCK_SIZE_M'"."""
    taken = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **words: taken.append((grid, args, words))

    class Tuned(Kernel):
        configs, fn = [{"BLOCK_SIZE_M": 64}], Kernel()

        def __getitem__(self, grid):
            return lambda *args, **words: self.fn[grid](*args, BLOCK_SIZE_M=64, **words)

    sweep.With(Tuned(), {"BLOCK_SIZE_M": 128})["grid"](1)
    sweep.With(Tuned(), {})["grid"](2)  # as the release launches it
    assert [words["BLOCK_SIZE_M"] for _, _, words in taken] == [128, 64]
