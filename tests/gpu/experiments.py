"""The table of experiments: what run.py can ask, by name."""

from __future__ import annotations

import agree
import asleep
import cases
import images
import mixed_states
import models
import modes
import next_turn
import proof
import settings
import solo
from experiment import Experiment

PROOF = "proof"
_ROWS = (
    Experiment(
        name=PROOF,
        what="109 prompts in every graph mode; the support matrix is made of it",
        models=models.DEFAULT,
        checked="agrees with eager prefill; every prefill that fits ran on the graph",
        port=21000,
        plan=proof.plan,
        judge=proof.judge,
        modes=modes.ALL,
        takes=("model", "mode"),
        result=proof.RESULT,
        beside=True,
        width=4,
        limit=1500,
        engine_limit=420,
    ),
    *settings.ROWS,
    Experiment(
        name="agree",
        what="the patched tree's answers against the untouched one's, eagerly",
        models=("nemotron-h",),
        passes=cases.passes(modes.EAGER),
        checked="agrees with the untouched tree; two patched engines give the same bits",
        port=26000,
        plan=agree.plan,
        judge=agree.judge,
        takes=("model", "against"),
    ),
    Experiment(
        name="sleep",
        what="servers that sleep, wake and get other weights, as RL trainers run them",
        models=("llama",),
        passes=asleep.STEPS,
        checked="agrees with an eager server at each step; a sleeping graph gives its memory up",
        port=27000,
        plan=asleep.plan,
        judge=asleep.judge,
        prepare=asleep.write_models,
        modes=(modes.BREAKABLE, modes.PIECEWISE),
        takes=("model", "mode", "tp"),
        engine_limit=240,
    ),
    Experiment(
        name="images",
        what="text, images and both in one call, of a small Qwen3.5",
        models=(images.MODEL,),
        passes=(images.TEXT, images.IMAGE, images.MIXED),
        checked="agrees with eager prefill; text is replayed, images where the queue says so",
        port=28500,
        plan=images.plan,
        judge=images.judge,
    ),
    solo.row(
        next_turn,
        "next turns behind states that were kept while decoding; 0.5.15 and later",
        "next turns answer as without a cache",
        30000,
    ),
    solo.row(
        mixed_states,
        "beginnings that were prefilled beside decoding requests; 0.5.14 and later",
        "shared beginnings answer as without a cache",
        32000,
    ),
)
EXPERIMENTS: dict[str, Experiment] = {row.name: row for row in _ROWS}


def listing() -> str:
    """A block of lines for each row."""
    blocks = []
    for row in EXPERIMENTS.values():
        lines = [f"{row.name}: {row.what}", f"  models: {' '.join(row.models)}"]
        lines += [f"  modes: {' '.join(row.modes)}"] if row.modes else []
        passes = row.passes or cases.passes(modes.BREAKABLE)
        lines += [f"  passes: {'; '.join(passes)}", f"  checked: {row.checked}"]
        lines += [f"  --without: {' '.join(row.controls)}"] if row.controls else []
        blocks.append("\n".join(lines))
    return "\n".join(blocks)
