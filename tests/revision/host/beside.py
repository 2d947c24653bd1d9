"""Models with a Mamba2 mixer beside their attention: a backend for them on the CPU, whose mixers
sum up each request's own rows, and layers without their break."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from . import hybrids


@dataclass(frozen=True)
class Call:
    """One call of a mixer. rows: how many it was given; batch: the one that came with them, None
    where the release hands on none (up to 0.5.12)."""

    layer_id: int
    rows: int
    batch: Any


def backend(calls):
    """A backend whose mixers sum up each request's own rows. `calls`: gets each mixer's. Rows of no
    request are an error. Its attention is none: half of the queries."""

    def mix(half, hidden_states, output, layer_id, forward_batch=None, **more):
        assert more["mup_vector"].isfinite().all()
        calls.append(Call(layer_id, len(hidden_states), forward_batch))
        output.copy_(hybrids.sums(hidden_states, half.batch))

    return of(mix, lambda q: q / 2)


def of(mix, attend):
    """A hybrid backend of the release's own classes, as Falcon-H1 insists on.

    mix(Mamba2 half, hidden_states, output, …): of a mixer. attend(queries): of attention.
    init_forward_metadata says of which requests the next forward is, as in the release.
    """
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid

    class Mamba2(hybrid.Mamba2AttnBackend):
        is_draft_worker = False  # asked on 0.5.13

        def __init__(self):
            pass

        def init_forward_metadata(self, forward_batch):
            self.batch = SimpleNamespace(extend_seq_lens=forward_batch.extend_seq_lens.clone())
            self.forward_metadata = SimpleNamespace(
                num_prefill_tokens=int(self.batch.extend_seq_lens.sum()),
                num_decodes=0,
                is_target_verify=False,
                draft_token_num=1,
            )

        def forward(self, mixer, hidden_states, output=None, **more):
            return mix(self, hidden_states, output, **more)

    class Attention(hybrid.HybridLinearAttnBackend):
        def __init__(self):
            self.linear_attn_backend = Mamba2()
            self.full_attn_backend = SimpleNamespace(init_forward_metadata=lambda batch: None)

        def init_forward_metadata(self, forward_batch):
            self.linear_attn_backend.init_forward_metadata(forward_batch)

        def forward(self, q, *_, **__):
            return attend(q)

        def resolve_prefill_shared_read_ends(self, batch, **_):
            """Asked from 0.5.22 on."""

    return Attention()


def unbroken(model):
    """`model`, whose first layer calls its mixer as the release does: in a forward of its own."""
    first = model.model.layers[0]

    class Unbroken(type(first)):
        def forward(self, *args, **kwargs):
            raise AssertionError("not run here")

    first.__class__ = Unbroken
    return model
