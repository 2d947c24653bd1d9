"""The states of hybrid models behind a verification of drafts: the release's own scheduler and
worker, on the CPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.managers import scheduler_output_processor_mixin as mixin
    from sglang.srt.speculative import eagle_worker_v2

INTERVAL = 8
BOUNDARIES = pytest.mark.revision(">=0.5.7,<0.5.11")
LIGHTNING = pytest.mark.revision(">=0.5.10,<0.5.13")


def tracked_point(before, after):
    """The length whose state a verification leaves in the tracked slot, or None: what
    EAGLEWorker._mamba_verify_update computes of the lengths around it."""
    return after // INTERVAL * INTERVAL if before // INTERVAL != after // INTERVAL else None


@BOUNDARIES
@pytest.mark.parametrize("accepted", [0, 1, 3])
@pytest.mark.parametrize("before", range(INTERVAL, 3 * INTERVAL))
def test_the_key_of_a_kept_state_is_its_length(monkeypatch, before, accepted):
    arguments = SimpleNamespace(mamba_track_interval=INTERVAL)
    monkeypatch.setattr(mixin, "get_global_server_args", lambda: arguments)
    after = before + accepted + 1  # the accepted drafts and the token before them
    pool = SimpleNamespace(get_mamba_ping_pong_other_idx=lambda index: index)
    request = SimpleNamespace(
        origin_input_ids=[0] * 4,
        output_ids=[0] * (after + 1 - 4),
        seqlen=after + 1,
        mamba_ping_pong_track_buffer=[5],
        mamba_next_track_idx=0,
        mamba_last_track_seqlen=INTERVAL,
    )
    drafts = SimpleNamespace(is_none=lambda: False)
    batch = SimpleNamespace(spec_algorithm=drafts, req_to_token_pool=pool)
    result = SimpleNamespace(accept_length_per_req_cpu=[accepted])
    update = mixin.SchedulerOutputProcessorMixin._mamba_prefix_cache_update
    update(SimpleNamespace(), request, batch, result, 0)
    assert request.mamba_last_track_seqlen == (tracked_point(before, after) or INTERVAL)


@LIGHTNING
@pytest.mark.parametrize("config", ["gdn", "mamba2", "lightning", None])
def test_a_verification_moves_the_states_of_every_hybrid(monkeypatch, config):
    class Updated(Exception):
        """The states have been moved."""

    def update(*_, **__):
        raise Updated

    names = {"gdn": "hybrid_gdn_config", "mamba2": "mamba2_config"}
    configs = dict.fromkeys([*names.values(), "hybrid_lightning_config"])
    if config:
        configs[names.get(config, "hybrid_lightning_config")] = object()
    verified = verified_by(configs, update, monkeypatch)
    if config is None:
        with pytest.raises(AttributeError):  # behind the states: the worker has no more than them
            verified()
    else:
        with pytest.raises(Updated):
            verified()


def verified_by(configs, update, monkeypatch):
    """A call of EAGLEWorkerV2.verify for one request; its worker has what the states need."""
    backend = SimpleNamespace(update_verify_buffers_to_fill_after_draft=lambda *_: None)
    runner = SimpleNamespace(attn_backend=backend, **configs)
    logits = SimpleNamespace(next_token_logits=None, hidden_states=None)
    output = SimpleNamespace(
        logits_output=logits, can_run_cuda_graph=False, routed_experts_output=None
    )
    worker = SimpleNamespace(
        target_worker=SimpleNamespace(
            model_runner=runner, forward_batch_generation=lambda *_, **__: output
        ),
        speculative_num_steps=1,
        plan_stream=None,
        plan_stream_ctx=nullcontext(),
        enable_nan_detection=False,
        req_to_token_pool=None,
        device="cpu",
        _mamba_verify_update=update,
    )
    worker._target_worker = worker.target_worker
    lengths = torch.ones(1)
    sampled = (lengths, lengths, lengths)
    drafts = SimpleNamespace(
        prepare_for_v2_verify=lambda *_: (None, False), sample=lambda *_: sampled
    )
    batch = SimpleNamespace(seq_lens=lengths, spec_info=drafts, has_grammar=False)
    stream = SimpleNamespace(current_stream=lambda: None)
    monkeypatch.setattr(eagle_worker_v2.torch, "get_device_module", lambda *_: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(eagle_worker_v2, "maybe_detect_nan", lambda *_: None, raising=False)
    return lambda: eagle_worker_v2.EAGLEWorkerV2.verify(worker, batch)
