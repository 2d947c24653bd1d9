"""The real queue: one text for a patch wherever its lines stand, and variants for what is other
code alone.
"""

from __future__ import annotations

from collections import Counter

from fakes import ROOT

from patchqueue.applying.apply import load_queue
from patchqueue.upstream import pins


def test_no_two_texts_differ_in_line_numbers_alone():
    queue = load_queue(ROOT)
    texts = Counter(
        (
            queue.base(name),
            tuple((file.path, tuple(hunk.lines for hunk in file.hunks)) for file in patch.files),
        )
        for name, patch in queue.patches.items()
    )
    assert [text[0] for text, count in texts.items() if count > 1] == []


def test_few_texts_make_the_same_changes_in_other_surroundings():
    """Where the releases have no line beside a change in common, or an order that is not theirs."""
    queue = load_queue(ROOT)
    texts = Counter(
        (
            queue.base(name),
            tuple(
                (
                    file.path,
                    tuple(line for hunk in file.hunks for line in hunk.lines if line.kind != " "),
                )
                for file in patch.files
            ),
        )
        for name, patch in queue.patches.items()
    )
    again = {text[0]: count for text, count in texts.items() if count > 1}
    assert sum(again.values()) - len(again) <= 7, again


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
