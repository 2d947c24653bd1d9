"""Hybrid models on a CPU: their recurrent layers sum up each request's own rows, and what only has
a GPU kernel is plain torch."""

import importlib
from types import SimpleNamespace

import torch


def sums(rows, forward_batch):
    """Each row with all rows of its request before it. Refuses rows of no request."""
    lengths = forward_batch.extend_seq_lens.tolist()
    assert len(rows) == sum(lengths), f"{len(rows)} rows for requests of {lengths}"
    return torch.cat([part.cumsum(0) / len(rows) for part in rows.split(lengths)])


def on_cpu(monkeypatch):
    """Let NemotronH and Qwen3.5 compute on the CPU; `seen`: their recurrent layers' batches."""
    seen = []

    def mamba(self, hidden_states, forward_batch, *_):
        seen.append(forward_batch)
        return sums(hidden_states, forward_batch)

    nemotron, qwen = (
        importlib.import_module(f"sglang.srt.models.{name}") for name in ("nemotron_h", "qwen3_5")
    )
    monkeypatch.setattr(nemotron.NemotronHMambaDecoderLayer, "_forward_mamba", mamba)
    monkeypatch.setattr(qwen, "fused_qkvzba_split_reshape_cat_contiguous", _split)
    monkeypatch.setattr(qwen.RMSNormGated, "forward", _gated_norm)
    if hasattr(qwen, "fused_sigmoid_mul"):  # from 0.5.14
        monkeypatch.setattr(qwen, "fused_sigmoid_mul", _sigmoid_mul)
    return seen


def gated_values(layer, mixed_qkv, a, b):
    """The values of a gated delta net, [rows, heads, size], times both gates."""
    values = mixed_qkv[:, layer.q_dim + layer.k_dim :]
    values = values.unflatten(-1, (layer.num_v_heads, layer.head_v_dim))
    return values * a.sigmoid()[..., None] * b.sigmoid()[..., None]


def recurrent(attention, seen):
    """`attention`, an attention backend, with the linear attention and the Mamba2 metadata of a
    hybrid one. planned: the batches that its linear half prepared."""

    class Hybrid(type(attention)):
        def __init__(self):
            super().__init__()
            self.planned = []

        def init_forward_metadata(self, forward_batch):
            super().init_forward_metadata(forward_batch)
            self.planned.append(forward_batch)

        @property
        def full_attn_backend(self):
            return SimpleNamespace(init_forward_metadata=super().init_forward_metadata)

        @property
        def linear_attn_backend(self):
            counts = dict(
                num_prefill_tokens=sum(self.lengths),
                num_decodes=0,
                is_target_verify=False,
                draft_token_num=1,
            )
            return SimpleNamespace(forward_metadata=SimpleNamespace(**counts))

        def forward(
            self, *args, layer=None, forward_batch=None, mixed_qkv=None, a=None, b=None, **kwargs
        ):
            if mixed_qkv is None:
                return super().forward(
                    *args,
                    **({} if layer is None else dict(layer=layer, forward_batch=forward_batch)),
                    **kwargs,
                )
            seen.append(forward_batch)
            return sums(gated_values(layer, mixed_qkv, a, b), forward_batch)[None]

    return Hybrid()


def _split(qkvz, ba, k_heads, v_heads, k_dim, v_dim):
    q, k, v, z = qkvz.split(
        [k_heads * k_dim, k_heads * k_dim, v_heads * v_dim, v_heads * v_dim], -1
    )
    b, a = ba.split([v_heads, v_heads], -1)
    return torch.cat((q, k, v), -1), z.unflatten(-1, (v_heads, v_dim)), b, a


def _gated_norm(self, x, z=None):
    return torch.nn.functional.rms_norm(
        x, x.shape[-1:], self.weight, self.eps
    ) * torch.nn.functional.silu(z)


def _sigmoid_mul(x, gate, inplace=False):
    made = x * gate.reshape(x.shape).sigmoid()
    return x.copy_(made) if inplace else made
