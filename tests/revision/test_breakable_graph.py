"""The overlay's own graph with breaks, on a recorded graph: what a break returns, and in which
order all of it runs."""

import pytest
import torch
from host import late, recorded

with late.modules():
    from sglang.srt.prefill_graph.breakable import graph as breakable_graph

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.11")


@pytest.fixture
def captured(monkeypatch):
    """captured(forward): the graph of `forward`, and what it returned."""
    with recorded.recording(monkeypatch):

        def capture(forward):
            made = breakable_graph.Graph()
            with breakable_graph.Capture(made, (0, 1), None):
                result = forward()
            return made, result

        yield capture


def test_what_a_break_returns_reaches_the_next_segment(captured):
    """A segment reads the tensor of the capture: without a copy it would go on with the capture's
    own batch."""
    inputs = torch.zeros(4)
    turned = breakable_graph.break_at(lambda rows: rows.flip(0))
    graph, output = captured(lambda: turned(inputs * 2) + 1)
    for batch in ([1.0, 2, 3, 4], [5.0, 6, 7, 8]):
        inputs.copy_(torch.tensor(batch))
        graph.replay()
        assert output.tolist() == [2 * one + 1 for one in batch[::-1]]


def test_a_break_may_return_nothing(captured):
    """Split ops write into the output that they are given."""
    inputs, kept, seen = torch.zeros(2), torch.zeros(2), []

    @breakable_graph.break_at
    def store(rows, place):
        seen.append(rows.tolist())
        place.copy_(rows)

    graph, output = captured(lambda: store(inputs + 1, kept) or kept * 10)
    inputs.fill_(4)
    graph.replay()
    assert seen == [[1, 1], [5, 5]] and output.tolist() == [50, 50]


def test_breaks_run_between_their_segments_in_order(captured):
    value = torch.zeros(1)
    double = breakable_graph.break_at(lambda rows: rows * 2)
    add = breakable_graph.break_at(lambda rows: rows + 100)
    graph, output = captured(lambda: add(double(value + 1) * 3) - 1)
    assert (len(graph.segments), len(graph.breaks)) == (3, 2)
    value.fill_(4)
    graph.replay()
    assert output.tolist() == [(4 + 1) * 2 * 3 + 100 - 1]
