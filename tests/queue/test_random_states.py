"""tests/gpu/random_states.py: the batches that it draws, and what it takes for a fault. Its
comparisons run in tests/revision/test_random_states.py."""

from __future__ import annotations

import importlib
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

GPU = Path(__file__).parents[1] / "gpu"
STEP = 128


def places(tokens):
    """As many as captured/tables.py gives a size."""
    return min(64, max(8, tokens // 16), tokens)


@pytest.fixture
def states(monkeypatch):
    """The module, whose neighbours' names are as plain as `run`: gone again after the test."""
    monkeypatch.syspath_prepend(str(GPU))
    for file in GPU.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return importlib.import_module("random_states")


def drawn(states, seed=1, step=STEP, count=None):
    source = states.Drawn(seed, states.SIZES, places, states.SLOTS, step)
    return [source.batch() for _ in range(count or states.BATCHES)]


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_fits_its_size_and_no_smaller_one(states, seed):
    below = dict(zip(states.SIZES, (0, *states.SIZES)))
    for batch in drawn(states, seed):
        assert below[batch.size] < batch.rows <= batch.size
        assert 1 <= len(batch.requests) <= places(batch.size)
        assert all(1 <= length <= 5000 for length in batch.lengths)


@pytest.mark.parametrize("seed", range(20))
def test_the_default_number_of_batches_has_every_promised_case(states, seed):
    batches = drawn(states, seed)
    requests = [one for batch in batches for one in batch.requests]
    assert {one.kind for one in requests} == {"cold", "hit", "goes on"}
    assert {len(batch.requests) for batch in batches} >= {1, 2, 8, 64}
    assert any(batch.rows == batch.size for batch in batches)  # no row behind it
    lengths = Counter(one.length for one in requests)
    assert lengths[1] > 50 and max(lengths) > 4000 and any(128 < n < 256 for n in lengths)
    ends = {one.keep == one.length for one in requests if one.keep}
    assert ends == {True, False} and sum(one.keep > 0 for one in requests) > 100
    pairs = {(a.size, b.size) for a, b in zip(batches[::2], batches[1::2])}
    assert len(pairs) == len(states.SIZES) ** 2  # each size right behind every one


def test_the_same_seed_draws_the_same(states):
    assert drawn(states, 7) == drawn(states, 7) != drawn(states, 8)


def test_a_request_that_goes_on_has_its_slot_and_its_tokens(states):
    had, went_on = {}, 0
    for batch in drawn(states):
        for one in batch.requests:
            if one.kind == "goes on":
                went_on += 1
                assert had[one.slot] == one.prefix
            assert (one.prefix == 0) == (one.kind == "cold")
        had |= {one.slot: one.prefix + one.length for one in batch.requests}
        had |= {one.keep_slot: None for one in batch.kept}
    assert went_on > 300


def test_no_slot_is_of_two_and_some_are_of_nobody(states):
    last = states.SLOTS - 4
    for batch in drawn(states):
        used = batch.slots + [one.keep_slot for one in batch.kept]
        assert len(used) == len({*used}) and 0 < min(used) <= max(used) < last


def test_a_state_is_kept_behind_whole_steps_of_its_request(states):
    """The scheduler asks for all tokens, or for one more than those steps."""
    for batch in drawn(states):
        for one in batch.kept:
            assert one.keep % STEP == 0 and STEP <= one.keep <= one.length
            assert one.asked // STEP * STEP == one.keep
            assert one.asked in (one.length, one.keep + 1)


def test_where_the_cache_keeps_no_states_none_is_kept(states):
    assert not any(batch.kept for batch in drawn(states, step=None))


def test_a_part_is_the_rows_of_its_request(states):
    batch = drawn(states, count=40)[-1]
    rows = [row for i in range(len(batch.requests)) for row in range(batch.rows)[batch.part(i)]]
    assert rows == list(range(batch.rows))


def test_orders_begin_anew_in_another_order(states):
    module = sys.modules["random_states_drawn"]
    order = module.orders((1, 2), random.Random(3))
    rounds = [tuple(next(order) for _ in range(8)) for _ in range(9)]
    pairs = [{*zip(one[::2], one[1::2])} for one in rounds]
    assert all(len(one) == 4 for one in pairs) and len({*rounds}) > 1


# --- what is a fault


def ledger(states):
    made = states.Ledger()
    made.where = "batch 3 of 64 rows"
    return made


def test_nothing_compared_is_nothing_held(states):
    assert not ledger(states).held


def test_one_state_with_another_bit_is_a_fault(states):
    found = ledger(states)
    found.bits("states", 0)
    assert found.held
    found.bits("states", 1)
    found.bits("states", 0)
    check = found.of("states")
    assert not found.held and (check.compared, check.wrong) == (3, 1)
    assert check.first == "batch 3 of 64 rows: 1 values"


@pytest.mark.parametrize("apart", [(0.02, 0.1), (0.001, 0.3), (float("nan"), 0.1), (0.001, 1e999)])
def test_beyond_either_limit_is_a_fault(states, apart):
    found = ledger(states)
    found.near("states", (0.01, 0.125), (0.01, 0.125))
    assert found.held
    found.near("states", apart, (0.01, 0.125))
    assert not found.held


def test_the_largest_differences_are_kept_and_nan_is_the_largest(states):
    found, nan = ledger(states), float("nan")
    for apart in ((0.2, 0.3), (0.1, 0.4), (0.1, 0.1)):
        found.near("states", apart, (1.0, 1.0))
    check = found.of("states")
    assert (check.mean, check.worst) == (0.2, 0.4)
    found.near("states", (nan, 0.1), (1.0, 1.0))
    found.near("states", (0.1, 0.1), (1.0, 1.0))
    assert check.mean != check.mean and check.worst == 0.4


def test_the_table_has_less_than_80_columns(states):
    found = ledger(states)
    found.bits("a request alone is as among others", 123456789)
    found.near("decoded outputs near float64", (0.5, 123.0), (0.01, 0.1))
    lines = found.table()
    assert all(len(line) < 80 for line in lines)
    assert any("first in batch 3 of 64 rows: 123456789 values" in line for line in lines)
    counts = dict(cold=12345, hit=12345, kept=12345) | {"goes on": 12345}
    numbers = dict(batches=300, seed=1, seconds=61.2, orders=36, all_orders=36)
    said = states.said("mamba2", numbers | dict(requests=counts)).splitlines()
    assert all(len(line) < 80 for line in said) and "36 of 36 orders" in said[1]
