"""The queue's name in upstream's own list of plugins: a line of .dist-info/entry_points.txt.

From 0.5.11 on every process of a server asks for the group sglang.srt.plugins, logs each name, and
calls it (sglang/srt/plugins/__init__.py, load_plugins; the file is the same up to 0.5.23). What is
named here logs one line and changes nothing. A plugin that fails is logged, and the server goes on.
"""

from __future__ import annotations

import re
from collections.abc import Container

GROUP, NAME = "sglang.srt.plugins", "prefill_graph_queue"
FILE = "entry_points.txt"
CALLED = "sglang.srt.prefill_graph.report.provenance:log_plugin"
# the release's list of plugins, and the module of what it is to call
LIST, MODULE = (
    "sglang/srt/plugins/__init__.py",
    "sglang/srt/prefill_graph/report/provenance.py",
)


def listed(before: bytes | None, files: Container[str]) -> bytes | None:
    """entry_points.txt with the queue in upstream's list of plugins; None where it stays as it is.

    before: its content, None where there is no such file. files: the package's, by their names in a
    wheel: one of them is the release's list of plugins, and one the queue's, or nothing is named.
    """
    text = (before or b"").decode("utf-8")
    if LIST not in files or MODULE not in files or f"\n{NAME} " in text:
        return None
    line, head = f"{NAME} = {CALLED}\n", f"[{GROUP}]\n"
    if re.search(rf"(?m)^{re.escape(head)}", text):
        return text.replace(head, head + line, 1).encode()
    blank = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{blank}{head}{line}".encode()
