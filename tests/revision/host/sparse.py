"""Sparse attention without a GPU: a pool, metadata and plain kernels for the release's own indexer,
and a plain one to hold it against."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import torch

from . import graph

PAGE = 64  # tokens; the indexer insists on it
FP8 = torch.float8_e4m3fn


class Pool:
    """The index cache: for each layer and slot a key in fp8 and its scale, as NSATokenToKVPool
    hands them out (bytes)."""

    page_size = PAGE

    def __init__(self, slots):
        self.slots, self.layers = slots, {}

    def set_index_k_scale_buffer(self, layer_id, loc, index_k, index_k_scale):
        assert len(loc) == len(index_k) == len(index_k_scale)
        keys, scales = self.layers.setdefault(
            layer_id,
            (torch.zeros(self.slots, index_k.shape[1], dtype=torch.uint8), torch.zeros(self.slots)),
        )
        keys[loc], scales[loc] = index_k.view(torch.uint8), index_k_scale.view(-1)

    def get_index_k_scale_buffer(self, layer_id, lengths, tables, *_):
        """Of one request with its length (up to 0.5.9), else of all with theirs."""
        rows = [(lengths, tables)] if tables.dim() == 1 else zip(lengths.tolist(), tables)
        slots = torch.cat(
            [
                (table[:, None] * PAGE + torch.arange(PAGE)).view(-1)[:length]
                for length, table in rows
            ]
        )
        keys, scales = self.layers[layer_id]
        return keys[slots], scales[slots][:, None].view(torch.uint8)


class Metadata:
    """What the sparse backend knows of a batch (NSAIndexerMetadata). prefixes, new: tokens of each
    request; first_page: of each."""

    def __init__(self, prefixes, new, first_page):
        self.lengths = [before + more for before, more in zip(prefixes, new)]
        self.starts = torch.tensor([0, *self.lengths[:-1]]).cumsum(0).tolist()
        self.owner = torch.tensor([number for number, more in enumerate(new) for _ in range(more)])
        self.expanded = torch.tensor(
            [before + n + 1 for before, more in zip(prefixes, new) for n in range(more)],
            dtype=torch.int32,
        )
        pages = -(-max(self.lengths) // PAGE)
        self.tables = torch.tensor([[page + n for n in range(pages)] for page in first_page])
        self.slots = torch.tensor(
            [
                page * PAGE + before + n
                for page, before, more in zip(first_page, prefixes, new)
                for n in range(more)
            ]
        )
        self.positions = self.expanded.long() - 1

    def get_page_table_64(self):
        return self.tables

    def get_indexer_seq_len(self):
        return torch.tensor(self.lengths)

    get_indexer_seq_len_cpu = get_indexer_seq_len

    def get_seqlens_expanded(self):
        return self.expanded

    def get_token_to_batch_idx(self):
        return self.owner

    def get_indexer_kvcache_range(self):
        starts = torch.tensor(self.starts, dtype=torch.int32)[self.owner]
        return starts, starts + self.expanded

    def topk_transform(self, logits, topk, ks=None):
        """Positions within the request, best first; -1 where there are fewer."""
        found = torch.full((len(logits), topk), -1, dtype=torch.int32)
        for row, (scores, length) in enumerate(zip(logits, self.expanded.tolist())):
            start = 0 if ks is None else int(ks[row])
            best = scores[start : start + length].topk(min(topk, length)).indices
            found[row, : len(best)] = best
        return found


class Rope(torch.nn.Module):
    """Rotary embedding of [tokens, …, width]; the release's own has GPU kernels for keys without an
    axis of heads only."""

    def forward(self, positions, *parts):
        return tuple(self.rotated(positions, part) for part in parts)

    def rotated(self, positions, x):
        half = x.shape[-1] // 2
        angles = (positions[:, None] * 10_000.0 ** (-torch.arange(half) / half)).view(
            len(x), *(1,) * (x.dim() - 2), half
        )
        first, second = x.float().chunk(2, -1)
        return torch.cat(
            [
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            ],
            -1,
        ).to(x.dtype)


def hadamard(x):
    size = x.shape[-1]
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (x.float() @ matrix * size**-0.5).to(x.dtype)


def quantised(x, block=128, scale_fmt=None):
    """(fp8, scale of each block in float32): layers/attention/nsa/triton_kernel.py act_quant."""
    blocks = x.float().view(*x.shape[:-1], -1, block)
    scale = blocks.abs().amax(-1).clamp(min=1e-4) / 448
    return (blocks / scale[..., None]).clamp(-448, 448).view(x.shape).to(FP8), scale


def logits_of(q, kv, weights, ks, ke, clean_logits=True):
    """deep_gemm.fp8_mqa_logits: [tokens, keys], every head's positive score times its weight;
    columns outside of ks..ke hold anything."""
    keys, scales = kv
    scores = torch.einsum("thd,sd->ths", q.float(), keys.float()).relu()
    return torch.einsum("ths,th->ts", scores, weights.float()) * scales


@contextlib.contextmanager
def kernels():
    """Let the release's indexer believe in a GPU, with these kernels in place of its own."""
    from sglang.srt.layers.attention.nsa import nsa_indexer, triton_kernel

    def gates(self, x):
        return x.float() @ self.weights_proj.weight.float().t()

    changes = [
        patch.object(nsa_indexer, "_is_cuda", True),
        patch.object(nsa_indexer, "rotate_activation", hadamard),
        patch.object(triton_kernel, "act_quant", quantised),
        patch.object(
            nsa_indexer, "deep_gemm", SimpleNamespace(fp8_mqa_logits=logits_of), create=True
        ),
    ]
    if hasattr(nsa_indexer, "can_use_nsa_fused_store"):
        changes.append(patch.object(nsa_indexer, "can_use_nsa_fused_store", lambda *_: False))
    if hasattr(nsa_indexer.Indexer, "_weights_proj_bf16_in_fp32_out"):
        changes.append(patch.object(nsa_indexer.Indexer, "_weights_proj_bf16_in_fp32_out", gates))
    with contextlib.ExitStack() as stack, torch.compiler.set_stance("force_eager"):
        for change in changes:
            stack.enter_context(change)
        yield


def batch_of(metadata, pool, rows, attention=None):
    """A ForwardBatch of that batch padded to `rows`: its slots behind the real tokens are 0, which
    no request owns."""
    tokens = len(metadata.slots)
    slots = torch.zeros(rows, dtype=torch.int64)
    slots[:tokens] = metadata.slots
    batch = graph.prefill_batch(
        rows,
        batch_size=len(metadata.lengths),
        seq_lens=torch.tensor(metadata.lengths),
        seq_lens_cpu=torch.tensor(metadata.lengths),
        extend_seq_lens_cpu=torch.bincount(metadata.owner).tolist(),
        extend_num_tokens=tokens,
        out_cache_loc=slots,
        token_to_kv_pool=pool,
    )
    batch.attn_backend = SimpleNamespace(
        get_indexer_metadata=lambda layer_id, _: metadata, forward=attention
    )
    return batch


def selected_plainly(indexer, requests):
    """What an indexer selects, by its definition (DeepSeek-V3.2-Exp's report, equation 1), for
    whole prompts at once.

    requests: (x [tokens, hidden], q_lora [tokens, rank]) of each whole prompt. For each token of
    each the set of positions.
    """
    found = []
    for x, q_lora in requests:
        positions = torch.arange(len(x))
        query = (q_lora @ indexer.wq_b.weight.t()).view(len(x), indexer.n_heads, indexer.head_dim)
        key = indexer.k_norm.forward_native(x @ indexer.wk.weight.t())
        rope = indexer.rope_head_dim
        q_rope, k_rope = indexer.rotary_emb(positions, query[..., :rope], key[..., :rope])
        query = torch.cat([q_rope, query[..., rope:]], -1)
        key = torch.cat([k_rope, key[..., rope:]], -1)
        (q8, q_scale), (k8, k_scale) = quantised(hadamard(query)), quantised(hadamard(key))
        gates = x.float() @ indexer.weights_proj.weight.float().t() * indexer.n_heads**-0.5
        weights = (gates[..., None] * q_scale * indexer.softmax_scale).squeeze(-1)
        scores = torch.einsum("thd,sd->ths", q8.float(), k8.float()).relu()
        logits = torch.einsum("ths,th->ts", scores, weights) * k_scale.view(-1)
        found += [
            set(logits[t, : t + 1].topk(min(indexer.index_topk, t + 1)).indices.tolist())
            for t in range(len(x))
        ]
    return found
