"""Tiles for the kernel of routed experts (fused_moe_kernel) where a release has no table for the
shape and the GPU.

A release reads `E=…,N=…,device_name=….json` from a folder for each version of Triton; 0.5.11, on
3.6.0, misses its own tables for 3.5.1. `table` reads all of the release's folders, then TABLES,
which tests/gpu/sweep_experts.py measures. In deterministic mode the release asks for no table.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import triton
from sglang.srt.prefill_graph.compat import features

logger = logging.getLogger(__name__)

Tile = dict[str, int]  # sizes of blocks, num_warps, num_stages

TABLES = Path(__file__).with_name("expert_tables")  # holds triton_X_Y_Z/ as a release's configs/
PLAIN = re.compile(
    r"E=(\d+),N=(\d+),device_name=([^,]+)\.json"
)  # of weights that are not quantized
_missing: dict[tuple[int, int], Path] = {}  # by E and N: where the release looked for a table first


def table(name: str, release: str) -> dict[int, Tile] | None:
    """The tile for each number of tokens, from the first file of this name, or None. release: the
    folder of the release's configs/. A down projection takes the up projection's tiles."""
    if name.endswith("_down.json"):
        return None
    configs = Path(release, "configs")
    folders = (*_folders(configs), *_folders(TABLES))
    for file in (folder / one for one in _names(name) for folder in folders):
        if file.is_file():
            logger.info("Using MoE kernel config from %s.", file)
            return {int(tokens): tile for tokens, tile in json.loads(file.read_text()).items()}
    if shape := PLAIN.fullmatch(name):
        _missing[int(shape[1]), int(shape[2])] = next(_folders(configs)) / name
    return None


def _names(name: str) -> tuple[str, str]:
    """A table's file, and that of one expert less: releases that fuse a shared expert into the
    routed ones count the shared expert (E=513 for Qwen3-Next from 0.5.14 on)."""
    return name, re.sub(r"^E=(\d+)", lambda experts: f"E={int(experts[1]) - 1}", name)


def _folders(configs: Path) -> Iterator[Path]:
    """The folder of the running Triton, then those of the other versions, the newest first."""
    yield configs / f"triton_{triton.__version__.replace('.', '_')}"
    names = (path.name for path in configs.glob("triton_*"))
    versions = (re.findall(r"\d+", name) for name in names)
    for version in sorted((list(map(int, parts)) for parts in versions), reverse=True):
        yield configs / "_".join(("triton", *map(str, version)))


def report_default(experts: int, size: int, first: Sequence[int], top_k: int) -> None:
    """Log once, on rank 0, that these experts have no table, and the command that makes one.

    experts, size: E and N of the file's name. first: the shape of the first projection's weights,
    [experts, size or twice size, hidden size]. top_k: experts of a token.
    """
    file = _missing.pop((experts, size), None)
    ranks = torch.distributed.is_initialized()
    if file is None or not features.on_cuda() or (ranks and torch.distributed.get_rank() > 0):
        return
    from sglang.version import __version__

    version = __version__.partition("+")[0]  # behind it is what a wheel of the queue adds
    shape = [experts, size, first[2], top_k, *(["relu2"] if first[1] == size else [])]
    logger.warning(
        "sglang has no tiles for E=%d experts of size N=%d on this GPU and uses its default. To"
        " find them, type in a folder of the prefill graph queue: scripts/nox sweep v%s --experts"
        " --here --python %s --pass=--shape --pass=%s; then copy the table to %s",
        *(experts, size, version, sys.executable, ",".join(map(str, shape)), file),
    )
