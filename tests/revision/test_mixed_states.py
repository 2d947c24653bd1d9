"""What a prompt that prefills beside decoding requests leaves in the prefix cache."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative import spec_info

pytestmark = pytest.mark.revision(">=0.5.7,<0.5.23")


class Request(SimpleNamespace):
    """A request of so many tokens. What else a release asks of one is 0, or does nothing."""

    def __init__(self, prompt: int, answer: int = 0):
        super().__init__(
            origin_input_ids=list(range(prompt)),
            output_ids=list(range(answer)),
            grammar=None,
            multimodal_inputs=None,
            mamba_last_track_seqlen=None,
            kv=SimpleNamespace(mamba_last_track_seqlen=None),
        )

    def _refresh_fill_ids(self):
        self.full_untruncated_fill_ids = self.origin_input_ids + self.output_ids

    refresh_fill_ids = _refresh_fill_ids

    def set_extend_range(self, *_):
        pass

    set_extend_input_len = set_extend_range

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def owner(request: Request):
    """What of a request holds the depth of its state: itself, and from 0.5.19 on its `kv`. The
    release sets it in one of the two."""
    info = getattr(schedule_batch, "ReqKvInfo", None)
    inside = "mamba_last_track_seqlen" in getattr(info, "__annotations__", {})
    of_request = inspect.getsource(schedule_batch.Req.__init__)
    assert inside != ("self.mamba_last_track_seqlen" in of_request), "it lies elsewhere now"
    return request.kv if inside else request


def batch(request: Request, mode, **more):
    """A batch of one, as the scheduler prepares it."""
    length = torch.tensor([len(request.origin_input_ids) + len(request.output_ids)])
    given = dict(
        reqs=[request],
        forward_mode=mode,
        sampling_info=SimpleNamespace(merge_batch=lambda other: None),
        enable_overlap=True,
        model_config=SimpleNamespace(is_encoder_decoder=False, vocab_size=9),
        seq_lens_sum=int(length),
        return_logprob=False,
        has_grammar=False,
        has_stream=False,
        return_hidden_states=False,
        spec_algorithm=spec_info.SpeculativeAlgorithm.from_string(None),
        device="cpu",
        prefix_lens=[0],
        extend_lens=[1],
        extend_num_tokens=1,
        extend_logprob_start_lens=[0],
        **dict.fromkeys(("seq_lens", "seq_lens_cpu", "orig_seq_lens"), length),
        **dict.fromkeys(("req_pool_indices", "req_pool_indices_cpu"), torch.arange(1)),
        **dict.fromkeys(("input_ids", "out_cache_loc"), torch.zeros(1, dtype=torch.int64)),
    )
    made = schedule_batch.ScheduleBatch.__new__(schedule_batch.ScheduleBatch)
    vars(made).update(given | more)
    return made


def test_a_mixed_prompt_gives_the_cache_no_slot_that_nobody_writes():
    prompt, running = Request(200), Request(50, answer=3)
    owner(prompt).mamba_last_track_seqlen = 128  # as prepare_for_extend leaves it
    owner(running).mamba_last_track_seqlen = 64  # written by a prefill of its own
    tracked = dict(
        mamba_track_indices=torch.tensor([5]),
        mamba_track_mask=torch.tensor([True]),
        mamba_track_seqlens=torch.tensor([200]),
        mamba_prefill_track_mask_cpu=[True],
        mamba_track_seqlens_cpu=[200],
    )
    prefill = batch(prompt, forward_batch_info.ForwardMode.EXTEND, **tracked)
    prefill.mix_with_running(batch(running, forward_batch_info.ForwardMode.DECODE))
    assert prefill.forward_mode.is_mixed() and len(prefill.reqs) == 2
    assert prefill.mamba_track_mask is None, "it is written after all, and could be cached"
    assert owner(prompt).mamba_last_track_seqlen is None
    assert owner(running).mamba_last_track_seqlen == 64
