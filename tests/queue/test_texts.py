"""The real queue: one text for a patch wherever its lines stand, and variants for what is other
code alone.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fakes import ROOT

from patchqueue.applying.apply import load_queue
from patchqueue.queue.patchfile import FileDiff, Line
from patchqueue.upstream import pins


@pytest.mark.parametrize(
    ("kinds", "most"),
    # releases may have no line beside a change in common, or an order that is not theirs
    [(" +-", 0), ("+-", 7)],
    ids=["other line numbers", "other surroundings"],
)
def test_few_texts_of_a_patch_make_the_same_changes(kinds, most):
    def changes(file: FileDiff) -> tuple[str, tuple[Line, ...]]:
        lines = (line for hunk in file.hunks for line in hunk.lines)
        return file.path, tuple(line for line in lines if line.kind in kinds)

    queue = load_queue(ROOT)
    texts = Counter(
        (queue.base(name), tuple(map(changes, patch.files)))
        for name, patch in queue.patches.items()
    )
    again = {text[0]: count for text, count in texts.items() if count > 1}
    assert sum(again.values()) - len(again) <= most, again


def test_a_patch_that_no_pull_request_can_carry_is_not_pending():
    """Pull requests are laid on the newest pin and later; what ended before can never be one."""
    queue, newest = load_queue(ROOT), pins.load(ROOT).all[-1]
    sent = {queue.base(patch.name) for patch in queue.select(newest.version)}
    pending = {
        queue.base(name)
        for name in queue.patches
        if queue.header(name).get("Upstream-Status") == "Pending"
    }
    assert pending - sent == set()
