"""How many rows each rank of data-parallel attention has in what a replayed graph writes for all:
each rank's tokens are padded to the size that is replayed."""

from __future__ import annotations

from typing import Any

_NOTED = "prefill_graph_rows"


def note_replay(forward_batch: Any, tokens: int) -> None:
    """Note on a ForwardBatch the capture size, in tokens, of its prefill graph's replay."""
    setattr(forward_batch, _NOTED, tokens)


def rows_per_rank(runner: Any, forward_batch: Any) -> int | None:
    """Rows of each rank in the graph that a ModelRunner just replayed for a ForwardBatch; of no
    meaning where none was. Forgets the note: the same batch can come again, on the decode graph."""
    noted = vars(forward_batch).pop(_NOTED, None)
    names = "decode_cuda_graph_runner", "graph_runner"  # from 0.5.14 on, and before
    graph = next((getattr(runner, name) for name in names if hasattr(runner, name)), None)
    if noted:
        return noted
    # of the decode graph's last replay: requests times the tokens of each, or with drafts of
    # unequal lengths (from 0.5.16) the number of all
    if getattr(graph, "ragged_verify_mode", None) and forward_batch.forward_mode.is_target_verify():
        return graph._ragged_graph_size
    requests = getattr(graph, "bs", None)
    # named num_tokens_per_bs up to 0.5.15
    width = getattr(graph, "captured_req_width", None) or getattr(graph, "num_tokens_per_bs", 1)
    return None if requests is None else requests * width
