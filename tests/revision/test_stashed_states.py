"""When the state behind a prompt's chunk is copied into the prefix cache: the release's own
scheduler, with a forward that is still under way."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.13")


class Stream:
    """Work that is done as soon as another stream waits for it."""

    def __init__(self):
        self.left = []

    def wait_stream(self, other):
        while other.left:
            other.left.pop(0)()


class Stashed(Exception):
    """The scheduler got as far as that."""


def stashed(overlap: bool, hybrid: bool) -> list[str]:
    """What happened up to the copy of the chunk's state, in order."""
    from sglang.srt.managers.scheduler import Scheduler

    seen, forward, current = [], Stream(), Stream()
    forward.left.append(lambda: seen.append("the forward writes the state"))

    def cache_unfinished_req(request, chunked):
        seen.append("the state is copied")
        raise Stashed

    cache = SimpleNamespace(
        cache_unfinished_req=cache_unfinished_req, supports_mamba=lambda: hybrid
    )
    request = object()
    scheduler = SimpleNamespace(
        enable_overlap=overlap,
        is_hybrid_ssm=hybrid,
        forward_stream=forward,
        device_module=SimpleNamespace(current_stream=lambda: current),
        tree_cache=cache,
        chunked_req=request,
        dllm_config=None,
        _abort_on_waiting_timeout=lambda: None,
        _abort_on_queued_timeout=lambda: None,
        _abort_on_running_timeout=lambda: None,
    )
    with pytest.raises(Stashed):
        if hasattr(Scheduler, "stash_chunked_request"):
            Scheduler.stash_chunked_request(scheduler, request)
        else:
            Scheduler.get_next_batch_to_run(scheduler)
    return seen


def test_a_chunks_state_is_copied_behind_the_forward_that_writes_it():
    """Who shared the prompt went on from what the slot had held before."""
    assert stashed(overlap=True, hybrid=True) == [
        "the forward writes the state",
        "the state is copied",
    ]


@pytest.mark.parametrize("overlap, hybrid", [(False, True), (True, False)])
def test_others_wait_for_nothing(overlap, hybrid):
    """One stream alone, or a model without states."""
    assert stashed(overlap, hybrid) == ["the state is copied"]
