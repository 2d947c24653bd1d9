"""The release's own runner of the piecewise graph, without a GPU: its flag, buffers and batches."""

from types import SimpleNamespace
from unittest import mock
from unittest.mock import MagicMock

import pytest
import torch
from host import graph, late, replayed

with late.modules():
    from sglang.srt.compilation import piecewise_context_manager as context
    from sglang.srt.model_executor import forward_batch_info, piecewise_cuda_graph_runner

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.14")
CAPTURED = 8


def bare_runner():
    """The release's, without what its __init__ makes."""
    return object.__new__(piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner)


@pytest.mark.revision("<0.5.10")
def test_the_flag_goes_down_when_the_body_raises():
    """After one failed prefill, eager forwards took the graph's split ops and had no context."""
    try:
        with pytest.raises(RuntimeError, match="body"), context.enable_piecewise_cuda_graph():
            assert context.is_in_piecewise_cuda_graph()
            raise RuntimeError("body")
        assert not context.is_in_piecewise_cuda_graph()
        runner = bare_runner()
        runner.model_runner = MagicMock()
        prepare = runner.model_runner.attn_backend.init_forward_metadata
        prepare.side_effect = MemoryError("metadata")
        with pytest.raises(MemoryError, match="metadata"):
            runner.replay(MagicMock())
        assert not context.is_in_piecewise_cuda_graph()
    finally:
        context._in_piecewise_cuda_graph = False


class Made(Exception):
    """A batch was made; its argument holds of what."""


@pytest.mark.revision("<0.5.6")
@pytest.mark.parametrize(
    "step, words, tokens", [("warmup_and_capture", (), 2), ("capture_one_batch_size", (4,), 4)]
)
def test_the_host_has_the_lengths_of_a_captured_batch(step, words, tokens):
    """The GPU is the default device there; "meta", which holds no numbers, stands in for it."""
    runner = bare_runner()
    runner.device, runner.pp_size = "meta", 1
    runner.model_runner = MagicMock(**{"server_args.enable_lora": False})
    for name in ("input_ids", "out_cache_loc", "out_cache_loc_swa", "positions"):
        setattr(runner, name, torch.zeros(8))

    def record(**given):
        raise Made(given)

    with (
        mock.patch.object(piecewise_cuda_graph_runner, "ForwardBatch", record),
        pytest.raises(Made) as made,
    ):
        getattr(runner, step)(*words)
    assert made.value.args[0]["extend_seq_lens_cpu"].tolist() == [tokens]


@pytest.mark.revision(">=0.5.9,<0.5.11")
@pytest.mark.parametrize(
    "tokens, width", [(5, 4), (5, 16), (CAPTURED, 16)], ids=["narrow", "wide", "no padding"]
)
def test_rows_of_embeddings_behind_the_batch_are_zero(tokens, width):
    """A shorter multimodal prefill ran with an earlier batch's embeddings in its padded rows."""
    runner, ones = bare_runner(), torch.ones(CAPTURED, dtype=torch.int64)
    runner.buffers = runner  # 0.5.10 keeps them in an object, 0.5.9 in the runner
    runner.capture_num_tokens, runner.is_multimodal = [CAPTURED // 2, CAPTURED], True
    runner.input_ids, runner.positions, runner.out_cache_loc = ones, ones.clone(), ones.clone()
    runner.input_embeds = torch.ones(CAPTURED, width)
    runner.mrope_positions = torch.ones(3, CAPTURED, dtype=torch.int64)
    runner.out_cache_loc_swa = runner.mamba_track_indices = None
    runner.mamba_track_mask = runner.mamba_track_seqlens = None
    names = "req_to_token_pool", "token_to_kv_pool", "attn_backend"
    runner.model_runner = SimpleNamespace(**dict.fromkeys(names))
    static = runner.replay_prepare(graph.batch_of([tokens]))
    assert len(static.input_ids) == CAPTURED
    assert static.input_embeds.data_ptr() == runner.input_embeds.data_ptr()
    assert runner.input_embeds[:tokens].eq(1).all() and runner.input_embeds[tokens:].eq(0).all()


def test_a_batch_that_also_decodes_runs_what_was_traced_for_prefills():
    """Nothing is traced anew for the batches of --enable-mixed-chunk. No graph is behind the runner
    (host/replayed.py)."""
    traced, prepared, mode = [], [], forward_batch_info.ForwardMode
    attention = SimpleNamespace(init_forward_metadata=lambda b: prepared.append(b.forward_mode))

    def note(graph_module, _):
        traced.append(graph_module)
        return graph_module.forward

    @torch.compile(backend=note)
    def layers(batch):
        """As RadixAttention asks for the mode where it is traced."""
        return batch.positions + 1 if batch.forward_mode.is_extend() else batch.positions

    torch._dynamo.reset()
    runner = replayed.Replays("piecewise", attention, layers)
    modes = [mode.EXTEND, mode.MIXED, mode.EXTEND]
    for one in modes:
        batch = graph.batch_of([3, 6], forward_mode=one)
        runner.run(batch)
        assert batch.forward_mode is one  # the scheduler's batch, which sampling reads
    assert prepared == modes and len(traced) == 1
