"""The release's FlashInfer backend without its memory, and prefills on a device without values."""

import torch

from . import late
from .unsaid import Unsaid, bare

with late.modules():
    from sglang.srt.layers.attention import flashinfer_backend
    from sglang.srt.model_executor import forward_batch_info


def batch_of(prefixes, lengths):
    """A ForwardBatch's fields of a prefill, on a device that holds no values."""

    def there(values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype).to("meta")

    whole = [before + new for before, new in zip(prefixes, lengths)]
    return Unsaid(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        logical_forward_mode=forward_batch_info.ForwardMode.EXTEND,
        batch_size=len(whole),
        req_pool_indices=there(range(len(whole)), torch.int64),
        seq_lens=there(whole, torch.int64),
        seq_lens_cpu=torch.tensor(whole),
        seq_lens_sum=sum(whole),
        extend_prefix_lens=there(prefixes),
        extend_seq_lens=there(lengths),
        extend_prefix_lens_cpu=list(prefixes),
        extend_seq_lens_cpu=list(lengths),
        extend_num_tokens=sum(lengths),
    )


class Wrapper:
    """In FlashInfer's place: takes the offsets to the host as its plan() does."""

    def __init__(self):
        self.planned = None

    def begin_forward(self, *given, **_):
        self.planned = [tensor.to("cpu").tolist() for tensor in given[:2]]
        # behind the pages' own indices
        pages = [one for one in given[2:] if isinstance(one, torch.Tensor)][1:]
        self.pages = [tensor.to("cpu").tolist() for tensor in pages]
        assert all(tensor.to("meta").device.type == "meta" for tensor in given[:2])


class Ignored:
    """In the place of a Triton kernel."""

    def __getitem__(self, grid):
        return lambda *_: None


def backend(monkeypatch):
    """The release's FlashInfer backend and what updates its indices, without their memory."""
    monkeypatch.setattr(
        flashinfer_backend, "create_flashinfer_kv_indices_triton", Ignored(), raising=False
    )
    wrapper = Wrapper()
    backend = bare(
        flashinfer_backend.FlashInferAttnBackend,
        prefill_wrappers_paged=[Wrapper()],
        prefill_wrapper_ragged=wrapper,
        num_wrappers=1,
        _prepare_dequant_workspace_metadata_for_extend=lambda *_: None,
    )
    updater = bare(
        flashinfer_backend.FlashInferIndicesUpdaterPrefill,
        attn_backend=backend,
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim=16,
        q_data_type=torch.float16,
        data_type=torch.float16,
        kv_indptr=[torch.zeros(9, dtype=torch.int32, device="meta")],
        qo_indptr=[torch.zeros(9, dtype=torch.int32, device="meta")],
        kv_last_page_len=torch.ones(8, dtype=torch.int32, device="meta"),
        req_to_token=torch.zeros(8, 64, dtype=torch.int32, device="meta"),
        prefill_wrapper_ragged=wrapper,
    )
    updater.update = updater.update_single_wrapper
    backend.indices_updater_prefill = updater
    return backend
