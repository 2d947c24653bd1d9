"""The small models that servers run; weights.py writes their weights. tests/models/gpu.json has the
configs, and what servers of some models are asked for:

- deepseek-v32 is behind an indexer (NSA). Sizes that kernels insist on are as published: FlashMLA
  wants 64 or 128 heads of 512 + 64, the indexer's scores heads of 128, its selection 2048
  positions. The type of DeepSeek-V3 stands for those of their own, which not every release's
  transformers knows; releases go by the architecture (is_deepseek_nsa, configs/model_config.py).
- deepseek-v32-fp8 has a router in no layer: fp8 keys round coarsely, and experts that are picked
  otherwise would hide what they do.
- falcon-h1 has attention in every layer and, beside it on the same input, Mamba2. Multipliers are
  as neutral as a checkpoint may have them: they scale what random weights are already scaled for.
- kimi-linear has Kimi's linear attention (KDA) and latent attention without positions. The sizes of
  heads are as published. Layers are counted from 1 in linear_attn_config.
- nemotron-h-mtp has one layer of attention that drafts. A random one is seldom right: answers are
  the target's all the same.
- qwen3-next-buffer is wide, so that a forward takes the GPU longer than the host needs to launch
  one, and every expert is taken, so that no router hides or makes a difference.
- qwen3-5's vision tower has Triton's attention: bundles may lack FlashAttention 3, its default.
- models of subjects.py have published sizes, for speed, with dummy weights. The letters of
  hybrid_override_pattern: M Mamba2, * attention, - MLP, E experts.
"""

from __future__ import annotations

import json
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "models/gpu.json"


def read() -> dict[str, dict[str, dict]]:
    """gpu.json, each entry whole: "like" names another one whose values it shares, "without" those
    of them that it lacks."""
    found = json.loads(CONFIGS.read_text(encoding="utf-8"))
    known: dict[str, dict] = {}

    def whole(config: dict) -> dict:
        config = {name: whole(of) if isinstance(of, dict) else of for name, of in config.items()}
        base = known[config.pop("like")] if "like" in config else {}
        without = config.pop("without", ())
        return {name: value for name, value in base.items() if name not in without} | config

    for group in found.values():
        for name, config in group.items():
            group[name] = known[name] = whole(config)
    return found


MODELS, OTHERS, ENGINES = read().values()
# Name -> why a run leaves it out unless it is named.
ONLY_ASKED_FOR = {
    "nemotron-h-buffer": (
        "the cache strategy extra_buffer, which releases before 0.5.13 refuse, and later ones"
        " choose for nemotron-h"
    ),
    "qwen3-next-buffer": "the cache strategy extra_buffer, which releases before 0.5.7 do not have",
    "kimi-linear": "no release has been asked for it yet",
    "nemotron-h-mtp": "drafts beside the prefix cache, which releases before 0.5.13 refuse",
    "qwen3-5": "images, which wants a processor, and releases before 0.5.9 do not have the model",
    "qwen3-next-triton": (
        "Triton's kernels compute its gated delta nets; from 0.5.19 on FlashInfer's are the default"
        " on Hopper"
    ),
}
# Code of the rule by which the breakable graph of a release leaves prefills of a model out: from
# 0.5.15 on those with cached prompts, where latent attention has layers of the other kind for them
# (_has_unsupported_mha_prefix, model_executor/runner/prefill_cuda_graph_runner.py:666 in 0.5.16).
REFUSED = {"kimi-linear": "forward_batch.extend_prefix_lens_cpu"}
# Their Mamba2 beside attention is a break of the breakable graph alone.
BREAKABLE_ALONE = {"falcon-h1"}
DEFAULT = tuple(name for name in MODELS if name not in ONLY_ASKED_FOR)


def has_router(config: dict) -> bool:
    """Whether some layer picks experts."""
    picks = not config.keys().isdisjoint(("num_experts_per_tok", "num_experts_per_token"))
    return picks and config.get("first_k_dense_replace", 0) < config["num_hidden_layers"]


def page_size(name: str) -> int:
    """Tokens of a page of the engine's cache; a release counts a request's tokens in whole pages
    when it fills a batch."""
    return engine(name).get("page_size", 1)


def is_sparse(config: dict) -> bool:
    """Whether attention reads what an indexer selected."""
    return "index_topk" in config


def has_drafts(name: str) -> bool:
    """Whether the model drafts for itself."""
    return bool(MODELS[name].get("num_nextn_predict_layers"))


def engine(name: str) -> dict:
    """sglang.Engine's words for this model on top of those for all. Where it drafts, engine.py adds
    where it lies. A word that has two names has both: releases know one of them. Sparse attention
    has bfloat16 keys, which FlashMLA's kernel reads in prefill and decode, since the defaults on
    Hopper decode with FlashAttention 3; fp8 keys want the kernel made for decoding."""
    return ENGINES.get(name, {})


def write_config(folder: Path, config: dict) -> Path:
    """config.json alone, for load_format="dummy"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return folder
