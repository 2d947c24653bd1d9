"""What each fork of host.interpreted has imported before it begins: triton with its interpreter,
and the release's own models and kernels. Importing this takes 15 s, a fork none of them."""

import contextlib
import importlib

from . import interpreted, standin_packages

# What the models do not import by themselves is imported first where the order matters.
MODULES = (
    *("torch._dynamo", "torch._inductor.compile_fx", "flashinfer"),
    "sglang.srt.layers.quantization",
    *(f"sglang.srt.models.{name}" for name in ("nemotron_h", "qwen3_next", "qwen3_5")),
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "host.models",
)

interpreted.start()
standin_packages.install()
for name in MODULES:
    with contextlib.suppress(Exception):  # not in this release, or it wants a GPU
        importlib.import_module(name)
