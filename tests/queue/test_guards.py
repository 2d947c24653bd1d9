"""Guards, parted and widened: whatever the range, each pin keeps one variant, and the new release
gets its own."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from patchqueue.queue import edit as guards

VERSIONS = [Version(f"0.5.{n}{post}") for n in range(5, 12) for post in ("", ".post1", ".post3")]
BOUNDS = [f"0.5.{n}" for n in range(4, 14)]
GUARDS = st.one_of(
    st.tuples(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS)).map(
        lambda ends: f">={ends[0]},<{ends[1]}"
    ),
    st.sampled_from(BOUNDS).map(lambda low: f">={low}"),
    st.sampled_from(BOUNDS).map(lambda low: f"=={low}.*"),
    st.sampled_from(BOUNDS).map(lambda low: f">=0.5.4,!={low}.*"),
)


def takes(guard: str, version: Version) -> bool:
    return SpecifierSet(guard).contains(version, prereleases=True)


def test_the_examples_in_the_docstrings():
    tried = doctest.testmod(guards)
    assert tried.attempted >= 6 and tried.failed == 0


@given(
    guard=GUARDS,
    pinned=st.sets(st.sampled_from(VERSIONS), max_size=6),
    version=st.sampled_from(VERSIONS),
)
def test_a_parted_guard_gives_the_version_to_the_new_variant_and_every_pin_its_own(
    guard, pinned, version
):
    assume(takes(guard, version))
    kept, new = guards.split(guard, version, pinned)
    assert takes(new, version)
    if not kept:
        assert new == guard and not any(takes(guard, pin) for pin in pinned - {version})
        return
    assert not takes(kept, version)
    for pin in pinned - {version}:
        assert takes(kept, pin) == takes(guard, pin) and not takes(new, pin)
    for other in VERSIONS:
        assert takes(kept, other) + takes(new, other) == takes(guard, other), (
            "disjoint, and together what it was"
        )


@given(pinned=st.sets(st.sampled_from(VERSIONS), max_size=6), version=st.sampled_from(VERSIONS))
def test_a_guard_of_its_own_takes_no_other_pin(pinned, version):
    guard = guards.guard_for(version, pinned)
    assert takes(guard, version) and not any(takes(guard, pin) for pin in pinned - {version})


WIDER = {  # None where a guard is no plain range
    ">=0.5.5,<0.5.6": ">=0.5.5,<0.5.10",
    "==0.5.5": ">=0.5.5,<0.5.10",
    "==0.5.5.*": ">=0.5.5,<0.5.10",
    ">=0.5.5": None,
    "~=0.5.5": None,
    ">=0.5.5,!=0.5.6.*": None,
    ">=0.5.5,<0.5.7,!=0.5.6": None,
}


@pytest.mark.parametrize(("guard", "wider"), WIDER.items())
def test_a_plain_range_is_widened_to_take_a_version_and_its_post_releases(guard, wider):
    assert guards.extended(guard, Version("0.5.9"), [Version("0.5.5")]) == wider


def test_a_guard_begins_at_its_release_unless_an_older_pin_has_a_part_of_it():
    early, late, other = Version("0.5.12"), Version("0.5.12.post1"), Version("0.5.11.post2")
    assert guards.lower_bound(late, [late, other]) == "0.5.12"
    assert guards.lower_bound(late, [early, late]) == "0.5.12.post1"
    assert guards.lower_bound(early, [early, late]) == "0.5.12"
    assert guards.lower_bound(Version("0.5.12rc1"), []) == "0.5.12rc1"
