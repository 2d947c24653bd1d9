"""Records as JSON: the same value again, and a line for each thing in it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from patchqueue.files import record

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=90)
VALUES = st.recursive(
    PLAIN,
    lambda held: (
        st.lists(held, max_size=4) | st.dictionaries(st.text(max_size=9), held, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_back(value):
    assert json.loads(record.text_of(value)) == value


def test_a_short_thing_is_a_line_and_a_long_one_has_several():
    rows = [{"name": "a" * 40, "sha256": "b" * 64}] * 9
    text = record.text_of({"version": 1, "rows": rows, "none": []})
    assert text.splitlines()[:3] == ["{", ' "version": 1,', ' "rows": [']
    assert text.splitlines()[3] == f"  {json.dumps(rows[0])},"
    assert text.endswith(' "none": []\n}\n') and len(text.splitlines()) == 15
