"""The attention cases that a release brings, on the tree at hand:
`python kits_cases.py OUT KIND …`. Started by kits.py.

Writes {"KIND way name": why it failed, or ""} into OUT, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

KIT = "sglang.test.kits.attention_unittest"
NO_KIT = 3
PADDING = 5  # rows of the graph behind a batch's own
# The heads of Nemotron-Nano-9B-v2 and of Nemotron-3-Nano-30B-A3B, of which the kit's are a tenth.
# Its scan in plain torch takes one step for each token and head.
MAMBA2_HEADS = {"heads of 80": 80, "heads of 64": 64}
MAMBA2_SIZES = dict(num_heads=4, state_size=128, n_groups=2, mamba_chunk_size=128)
MAMBA2_PROMPTS = dict(prefix_lens=(0, 4, 0), extend_lens=(150, 7, 1))
CONTEXT = 192


def main(words: list[str]) -> int:
    out, kinds = Path(words[0]), words[1:]
    try:
        # it imports every method, and some state for all what one rank is
        runners = importlib.import_module(f"{KIT}.runner_modes.split_op_runner")
    except ModuleNotFoundError as error:
        if not (error.name and KIT.startswith(error.name)):
            raise
        print(f"the release brings no attention cases: {error}", file=sys.stderr)
        return NO_KIT
    found: dict[str, str] = {}
    for kind in kinds:
        method = importlib.import_module(f"{KIT}.attention_methods.{kind}_attention")
        for name, run in cases(kind, method, runners):
            found[name] = fault(run)
            out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def cases(kind: str, method, runners) -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, what to call) of one kind: each case eagerly; prompts also as a split op with padded
    rows, in the graph with breaks and in the piecewise one."""
    eager = getattr(method, f"run_{kind}_attention_case")
    split = getattr(runners, f"run_{kind}_split_op_extend_case")
    for case, more in [
        *((case, {}) for case in getattr(method, f"make_{kind}_cases")("triton")),
        *(published(method) if kind == "mamba2" else ()),
    ]:
        yield f"{kind} eager {case.name}", _call(eager, case, more)
        if not case.forward_mode.is_decode():
            rows = {"static_num_tokens": case.num_input_tokens + PADDING}
            for way, breakable in (("breakable", True), ("piecewise", False)):
                words = more | rows | {"breakable": breakable}
                yield f"{kind} {way} {case.name}", _call(split, case, words)


def published(method) -> list[tuple]:
    """Mamba2 with heads of published models: the kit's first prompt, longer than a chunk."""
    first = method.make_mamba2_cases("triton")[0]
    return [
        (
            replace(first, name=name, head_dim=size, **MAMBA2_SIZES, **MAMBA2_PROMPTS),
            {"max_context_len": CONTEXT},
        )
        for name, size in MAMBA2_HEADS.items()
    ]


def _call(run: Callable, case, words: dict) -> Callable[[], object]:
    return lambda: run(unittest.TestCase(), case, **words)


def fault(run: Callable[[], object]) -> str:
    """Why a case failed, in one line; empty where it passed."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            run()
    except Exception as error:
        said = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' '.join(said[:3])}"[:300]
    return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
