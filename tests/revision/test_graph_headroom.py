"""What a server says whose prefill graph leaves less memory than it took."""

import argparse
import logging
import re

import pytest
from host import late, prefill

with late.modules():
    from sglang.srt import server_args
    from sglang.srt.prefill_graph.compat import headroom

pytestmark = pytest.mark.revision(">=0.5.14,<0.5.24")


@pytest.fixture
def warned(build_model, caplog):
    """warned(before, after): what the release's own set-up warns of with so many GB free before and
    after the capture."""

    def capture(before, after, **changes):
        caplog.clear()
        made = prefill.capture(build_model("llama"), layers=4, memory=(before, after), **changes)
        assert getattr(made, "runner", made) is not None
        records = [one for one in caplog.records if one.levelno >= logging.WARNING]
        return [one.getMessage() for one in records if "prefill CUDA graph" in one.getMessage()]

    return capture


def test_less_than_the_graph_took_is_one_warning_with_figures(warned):
    """The graph stays: whether its memory is needed otherwise is the user's to know. 0.5.16 has
    none below 4 GB."""
    [message] = warned(9.0, 4.2)
    assert message.startswith("The prefill CUDA graph took 4.80 GB, and 4.20 GB are left.")


@pytest.mark.parametrize("before, after", [(80.0, 78.0), (9.0, 4.5), (80.0, 80.0)])
def test_enough_memory_is_no_warning(warned, before, after):
    assert warned(before, after) == []


def test_the_first_rank_alone_warns(warned):
    assert warned(9.0, 4.2, tp_rank=1) == []


def test_the_options_that_it_names_are_the_releases():
    named = re.findall(r"--[a-z-]+", headroom.shortage(2.0, 1.0))
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    assert len(named) == 4 and set(named) <= {
        option for one in parser._actions for option in one.option_strings
    }
