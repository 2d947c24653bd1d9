"""Routed experts that a server returns: the release's own buffer and layer, and the rows of a rank
under DP attention as the release's own model runner reads them."""

import contextlib
import functools
import types
from unittest import mock

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.layers import dp_attention
    from sglang.srt.model_executor import forward_batch_info, model_runner
    from sglang.srt.model_executor.runner import prefill_cuda_graph_runner
    from sglang.srt.state_capturer import base, routed_experts

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.24")
LATER = pytest.mark.revision(">=0.5.14")  # where one runner has every prefill graph
ROWS = 256  # of the buffer for all ranks; row n holds expert n
RANK, SIZE = 1, 64  # of two, whose prefills of 50 and 40 tokens are padded to 64


@pytest.mark.patch("moe/keep-routed-experts-beside-shared")
@pytest.mark.revision(">=0.5.14,<0.5.23")
def test_a_routers_choice_fits_a_buffer_with_room_for_shared_experts():
    cache = base.BaseDeviceCache(
        max_batch_size=4, num_layers=2, topk_size=3, device="cpu", name="routed_experts"
    )
    chosen = torch.tensor([[5, 1], [0, 7]], dtype=torch.int32)
    cache.capture(1, chosen)
    assert cache.buffer[:2, 1, :2].equal(chosen)
    assert not cache.buffer[:, 0].any() and not cache.buffer[2:].any()
    whole = torch.arange(12, dtype=torch.int32).view(4, 3)
    cache.capture(0, whole)
    assert cache.buffer[:, 0].equal(whole)


# what the model runner's `forward` asks beside the graphs
BESIDE = {
    "_prefill_cuda_graph_allows_context_parallel",
    "_build_step_span_name",
    "build_step_span_name",
    "device_timer_ctx",
    "forward_context",
    "get_exec",
    "get_global_expert_distribution_recorder",
    "get_model",
    "profile_range",
}


class Loaded(Exception):
    """Raised where a graph's runner begins to fill its buffers: all that is asked about is done."""


def a_capturer():
    """The release's own, whose buffer holds the number of each row."""
    found = object.__new__(routed_experts.RoutedExpertsCapturer)
    found.topk_size, found.host_cache = 1, None
    found.device_cache = types.SimpleNamespace(
        buffer=torch.arange(ROWS, dtype=torch.int32).view(ROWS, 1, 1)
    )
    return found


def a_prefill_graph(admits):
    """The release's own runner of SIZE tokens; it loads a batch, and replays nothing."""
    found = object.__new__(prefill_cuda_graph_runner.PrefillCudaGraphRunner)
    found.buffers, found.capture_num_tokens = None, [16, SIZE]
    found.max_context_size = found.max_seq_len = found.dllm_attention = None
    found._is_full_backend = False
    found.buffer_registry = types.SimpleNamespace(fill_from=mock.Mock(side_effect=Loaded))
    found.can_run_graph = lambda batch: admits

    def execute(batch, **kwargs):
        with contextlib.suppress(Loaded):
            type(found).load_batch(found, batch, **kwargs)
        assert found.buffer_registry.fill_from.called

    found.execute = execute
    return found


def a_decode_graph(admits, requests, width):
    """A runner whose last replay had `requests`, each of `width` tokens."""
    return types.SimpleNamespace(
        bs=requests,
        captured_req_width=width,
        num_tokens_per_bs=width,
        can_run_graph=lambda batch: admits,
        execute=lambda batch, **kwargs: None,
    )


def a_batch(mode, tokens):
    """One rank's ForwardBatch, and the tokens of all ranks as the scheduler gathered them."""
    found = object.__new__(forward_batch_info.ForwardBatch)
    vars(found).update(
        forward_mode=forward_batch_info.ForwardMode[mode],
        batch_size=1,
        input_ids=torch.zeros(tokens[RANK], dtype=torch.int64),
        out_cache_loc=torch.arange(tokens[RANK]),
        out_cache_loc_virtual=None,
        global_num_tokens_cpu=list(tokens),
        token_indices_to_pool=None,
        apply_deprecated_skip_attn_backend_init=lambda value: None,
        post_forward_mlp_sync_batch=lambda output: None,
    )
    return found


@pytest.fixture
def forward(monkeypatch):
    """forward(batch, prefill, decode): the first row that the capturer returns of what the model
    runner's own `forward` ran."""
    monkeypatch.setattr(routed_experts, "is_dp_attention_enabled", lambda: True)
    for name in ("get_attention_dp_rank", "dp_slot_in"):
        monkeypatch.setattr(dp_attention, name, lambda *counts: RANK, raising=False)
    for name in BESIDE & vars(model_runner).keys():
        monkeypatch.setattr(model_runner, name, mock.MagicMock())
    overlaps = types.SimpleNamespace(disable_overlap_schedule=False, elastic_ep_backend=None)
    capturer, answers = a_capturer(), {"get_schedule": overlaps, "get_cp_strategy": None}
    answers |= {"get_global_indexer_capturer": None, "get_global_experts_capturer": capturer}
    for name, answer in answers.items():
        monkeypatch.setattr(model_runner, name, lambda answer=answer: answer, raising=False)
    runner_class = model_runner.ModelRunner

    def run(batch, prefill, decode, padded=None):
        def pad(batch):
            if padded is not None:
                batch.global_num_tokens_cpu = list(padded)

        runner = mock.MagicMock(
            device="cuda",
            server_args=overlaps,
            is_draft_worker=False,
            enable_elastic_ep=False,
            hisparse_coordinator=None,
            canary_manager=None,
            msprobe_debugger=None,
            eplb_manager=None,
            device_timer=None,
            forward_pass_id=0,
            decode_cuda_graph_runner=decode,
            prefill_cuda_graph_runner=prefill,
            _prepare_eager_forward_batch=pad,
            _extend_forward_kwargs=lambda *batch: {},
        )
        runner._forward_raw = functools.partial(runner_class._forward_raw, runner)
        found = runner_class.forward(runner, batch).routed_experts_output.topk
        return found.flatten().tolist()

    return run


def rows(start, count):
    return list(range(start, start + count))


@LATER
def test_a_prefill_graphs_rows_begin_behind_its_padded_ranks(forward):
    """Rank 1 got the rows from 8 on: those of rank 0's tokens, as the last decode graph had 8
    requests. Where no decode graph had run the server died of a TypeError."""
    for requests in (8, None):
        decode = a_decode_graph(False, requests, 1)
        found = forward(a_batch("EXTEND", (50, 40)), a_prefill_graph(True), decode, (SIZE, SIZE))
        assert found == rows(SIZE, SIZE)


@LATER
def test_a_prefill_graphs_rows_end_with_its_replay(forward):
    """A batch can run again: what a prefill graph replayed says nothing about the decode graph."""
    batch, decode = a_batch("EXTEND", (50, 40)), a_decode_graph(False, 8, 1)
    forward(batch, a_prefill_graph(True), decode, (SIZE, SIZE))
    again = a_batch("DECODE", (3, 5))
    vars(batch).update(vars(again))
    assert forward(batch, a_prefill_graph(True), a_decode_graph(True, 8, 1)) == rows(8, 5)


@LATER
@pytest.mark.parametrize("width", [1, 4])
def test_a_decode_graphs_rows_are_the_tokens_of_its_requests(forward, width):
    """With drafts every request has several tokens: rank 1 got rows of rank 0."""
    mode = "DECODE" if width == 1 else "TARGET_VERIFY"
    batch = a_batch(mode, (3 * width, 5 * width))
    found = forward(batch, a_prefill_graph(True), a_decode_graph(True, 8, width))
    assert found == rows(8 * width, 5 * width)


@pytest.mark.revision(">=0.5.16")
def test_drafts_of_unequal_lengths_have_the_rows_of_all(forward):
    decode = a_decode_graph(True, 8, 4)
    decode.ragged_verify_mode, decode._ragged_graph_size = "compact", 24
    batch = a_batch("TARGET_VERIFY", (20, 17))
    assert forward(batch, a_prefill_graph(True), decode) == rows(24, 17)


@LATER
def test_eager_prefills_rows_begin_behind_the_ranks_own_tokens(forward):
    """As before: nothing is padded to a size."""
    decode = a_decode_graph(False, 8, 1)
    found = forward(a_batch("EXTEND", (50, 40)), a_prefill_graph(False), decode)
    assert found == rows(50, 40)


class MarkedBatch(types.SimpleNamespace):
    def apply_deprecated_skip_attn_backend_init(self, value):
        """Of 0.5.13."""


@pytest.mark.revision("<0.5.14")
@pytest.mark.parametrize("width", [1, 4])
def test_earlier_capturers_get_the_rows_of_a_decode_graph_in_tokens(monkeypatch, width):
    """With drafts rank 1 got rows of rank 0 too: requests were counted, of several tokens each."""
    for name in (BESIDE | {"get_global_indexer_capturer"}) & vars(model_runner).keys():
        monkeypatch.setattr(model_runner, name, mock.MagicMock())
    capturer = mock.MagicMock()
    monkeypatch.setattr(model_runner, "get_global_experts_capturer", lambda: capturer)
    graph = types.SimpleNamespace(bs=8, num_tokens_per_bs=width)
    runner = mock.MagicMock(
        spec=["_forward_raw", "device", "is_draft_worker", "server_args", "graph_runner"],
        graph_runner=graph,
    )
    quiet = dict.fromkeys(("enable_elastic_ep", "canary_manager", "msprobe_debugger"))
    for name, value in (quiet | {"eplb_manager": None, "forward_pass_id": 0}).items():
        setattr(runner, name, value)
    runner.server_args.elastic_ep_backend = None
    model_runner.ModelRunner.forward(runner, MarkedBatch())
    assert capturer.on_forward_end.call_args.kwargs["cuda_graph_batch"] == 8 * width
