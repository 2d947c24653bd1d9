"""Which module asks for a group of ranks, in a forward that torch.compile traces."""

import pytest

pytestmark = pytest.mark.revision(">=0.5.21,<0.5.22")


@pytest.fixture
def getter():
    """A getter of an old name, as the release makes them, that nothing has called yet."""
    from sglang.srt.distributed import parallel_state

    yield parallel_state._warn_if_called_from_outside("a_getter", "another")(lambda: 2)
    parallel_state._ALREADY_WARNED.discard("a_getter")


def test_a_full_graph_compile_asks_for_a_group(getter):
    """The embedding of any model does with tensor parallelism."""
    import torch

    compiled = torch.compile(lambda x: x * getter(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_an_eager_caller_is_still_warned_once(getter):
    with pytest.warns(DeprecationWarning, match="a_getter"):
        assert getter() == 2
    assert getter() == 2
