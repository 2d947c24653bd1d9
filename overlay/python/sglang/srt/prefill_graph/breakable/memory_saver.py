"""The breakable graph beside a memory saver that pauses the memory of graphs, on releases from 0.5.14 on."""

from __future__ import annotations

import logging
from typing import Any

from ..compat import model_runner

logger = logging.getLogger(__name__)

VARIABLE = "SGLANG_MEMORY_SAVER_CUDA_GRAPH"


def stays_eager(runner: Any) -> bool:
    """Whether the release's backend would refuse to be made. Then its prefill runs eagerly, and the first rank warns of it once.

    runner: ModelRunner, of the model or of a draft. The decode graphs, which can be paused, are not touched.
    """
    from sglang.srt.utils import get_bool_env_var
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

    asked = bool(getattr(runner.server_args, "enable_memory_saver", False)) and get_bool_env_var(VARIABLE)
    if not TorchMemorySaverAdapter.create(enable=asked).enabled:
        return False
    if model_runner.is_first_rank(runner) and not runner.is_draft_worker:
        logger.warning(
            "Prefill runs eagerly, without a CUDA graph: %s asks for graphs whose memory can be paused, "
            "and that of the breakable prefill graph cannot.",
            VARIABLE,
        )
    return True
