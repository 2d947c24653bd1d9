"""What a GPU's clock and power were meanwhile, as nvidia-smi says."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from collections.abc import Iterator

FIELDS = ("clocks.sm", "power.draw", "clocks_event_reasons.sw_power_cap")
EVERY_MS = 100


@contextlib.contextmanager
def sampled(gpu: str) -> Iterator[dict]:
    """Sample `gpu` inside. The dict that it gives is filled at the end: `summary` of the samples,
    or why there are none.

    gpu: what `nvidia-smi -i` takes.
    """
    words = ["nvidia-smi", "-i", gpu, f"--query-gpu={','.join(FIELDS)}"]
    words += ["--format=csv,noheader,nounits", "-lms", str(EVERY_MS)]
    found: dict = {}
    try:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        found["why"] = str(error)
        yield found
        return
    try:
        yield found
    finally:
        process.terminate()
        found |= summary(process.communicate()[0])


def summary(said: str) -> dict:
    """Of nvidia-smi's lines: how many samples, the median clock (MHz) and power (W), and the share
    of samples in which power held the clock down. `why`: what it said, where that is no sample."""
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    rows = [row for row in rows if len(row) == len(FIELDS) and row[0].isdecimal()]
    if not rows:
        return {"samples": 0, "why": said.strip()[-200:]}
    return {
        "samples": len(rows),
        "sm_mhz": statistics.median(int(row[0]) for row in rows),
        "watts": statistics.median(float(row[1]) for row in rows),
        "power_capped": round(statistics.mean(row[2] == "Active" for row in rows), 2),
    }
