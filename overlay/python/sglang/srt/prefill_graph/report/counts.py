"""How many prefills of this scheduler ran on its prefill graph, and why the others ran eagerly.

Patches call `ran_on_graph` and `ran_eagerly` where the release has decided about a batch. Both wait
for nothing: a thread leaves the counts with the record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..compat import eager

INTERVAL = 5.0  # seconds, at most, until a count is in the record
_KEPT = "prefill_graph_counts"


class Counts:
    """Prefills since the start. leave(on_graph, eager) writes them; it is called by the thread."""

    def __init__(self, leave: Callable[[int, Mapping[str, int]], None]) -> None:
        self.on_graph = 0
        self.eager: dict[str, int] = {}
        self._leave = leave
        self._changed = threading.Event()
        self._writer: threading.Thread | None = None

    def add(self, reason: str | None) -> None:
        """One prefill: why it ran eagerly, or None."""
        if reason is None:
            self.on_graph += 1
        else:
            self.eager[reason] = self.eager.get(reason, 0) + 1
        if not self._changed.is_set():
            self._changed.set()
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write, name="prefill graph's record", daemon=True
                )
                self._writer.start()

    def _write(self) -> None:
        while True:
            self._changed.wait()
            time.sleep(INTERVAL)
            self._changed.clear()
            self._leave(self.on_graph, dict(self.eager))


def keep(runner: Any, counts: Counts) -> None:
    """From here on the prefills of a ModelRunner are counted."""
    setattr(runner, _KEPT, counts)


def ran_on_graph(runner: Any) -> bool:
    """Count a batch that the graph of a ModelRunner takes. True, so that it can end a condition."""
    counts = getattr(runner, _KEPT, None)
    if counts is not None:
        counts.add(None)
    return True


def ran_eagerly(runner: Any, forward_batch: Any) -> bool:
    """Count a batch that a ModelRunner runs eagerly, if it is a prefill. False, so that it can end
    a condition."""
    counts = getattr(runner, _KEPT, None)
    if counts is not None and eager.is_prefill(forward_batch):
        counts.add(eager.why(runner, forward_batch))
    return False
