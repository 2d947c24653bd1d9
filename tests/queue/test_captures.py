"""tests/gpu/judging.py: what a log says of captured graphs, whichever runner wrote it."""

from __future__ import annotations

import re

import gpumodules
import pytest
from fakes import ROOT

OURS = ROOT / "overlay/python/sglang/srt/prefill_graph/breakable/runner.py"
UPSTREAMS = (  # 0.5.12.post1, 0.5.23
    "[2026-11-24 20:27:08] Capture cuda graph end. Time elapsed: 60.44 s. mem usage=0.08 GB. avail",
    "Capture target prefill CUDA graph end. elapsed=19.93 s, mem usage=1.29 GB, avail mem=80.98 GB",
)


judging = gpumodules.fixture("judging")


def test_releases_say_it_in_their_words(judging):
    assert judging.captures("\n".join(UPSTREAMS)) == [
        judging.Capture("cuda graph", 60.44, 0.08),
        judging.Capture("target prefill CUDA graph", 19.93, 1.29),
    ]


@pytest.mark.parametrize("kind", ["breakable", "piecewise"])
def test_the_queues_runners_are_understood(judging, kind):
    """The words are those of the overlay: a page that shows no seconds has lost them."""
    said = re.search(r'"(Captured the %s [^"]*)"', OURS.read_text(encoding="utf-8"))[1]
    log = f"{UPSTREAMS[0]}\n[2026-11-24 20:27:14] {said % (kind, 5.65, -0.05, 136.98)}\n"
    assert judging.captures(log)[1:] == [judging.Capture(f"{kind} prefill graph", 5.65, -0.05)]
