"""tests/gpu/random_states.py in small: tiny layers, interpreted kernels, and calls in the place of
replays. Its own run wants a GPU."""

import pytest

# the kernels are this package's: half a minute of interpreting them on one release is enough
pytestmark = pytest.mark.revision(">=0.5.12,<0.5.13")

FAULTS = {
    "state": "states are those of eager",
    "window": "windows are the last inputs",
    "canary": "slots of others are as they were",
    "behind": "rows behind the batch are zero",
    "company": "a request alone is as among others",
}
MAMBA2 = {
    "outputs near the release's scan",
    "kept states are those of eager",
    "a kept state is one of a prefill",
}
CASES = {family: dict(family=family, batches=4) for family in ("mamba2", "gdn")}
CASES |= {fault: dict(family="mamba2", batches=2, fault=fault) for fault in FAULTS}


@pytest.fixture(scope="module")
def found():
    from host import interpreted

    return interpreted.run("host.references.random_states", CASES)


@pytest.mark.parametrize("family", ["mamba2", "gdn"])
def test_a_captured_layer_holds(family, found):
    one = found[family]
    assert one["held"] and not one["wrong"]
    assert {*FAULTS.values(), "states near float64"} <= one["compared"].keys()
    assert (family == "mamba2") == (one["compared"].keys() >= MAMBA2)
    assert max(one["worst"].values()) < 0.02  # GDN is computed in float16
    assert one["compared"]["a request alone is as among others"] == 4


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_captured_prefill_is_found(fault, found):
    assert not found[fault]["held"]
    assert FAULTS[fault] in found[fault]["wrong"]


def test_one_wrong_slot_is_all_that_a_canary_finds(found):
    """Requests are served as before."""
    wrong = found["canary"]["wrong"]
    assert [*wrong] == ["slots of others are as they were"]
    assert wrong["slots of others are as they were"].endswith(": 1 values")
