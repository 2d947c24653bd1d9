"""How releases of sglang differ, found by looking for features. No other folder knows a release. A
module imports sglang, and most of them torch, only inside of its functions. Modules, low to high:

    features        parts that a release has
    model_runner    what its model runner collects of a model, and where it looks for that
    eager           why the graph does not take a batch
    graph_rows      rows of each rank in what a graph writes for all ranks
    ops             the state that split ops ask for, and how the compiler learns of more of them
    delta_rule      the kernels of a gated delta rule's prefill, and where they look their chunks up
    arguments       its server arguments for the prefill graph, up to 0.5.13
    prefill_config  its setting for the prefill graph, and its rules about it, from 0.5.14 on
    limits          what keeps a server from a graph, or makes one costly
    resolving       what this package changes in its arguments, up to 0.5.14
    pausing         graphs whose memory a memory saver pauses with the rest
    recapture       graphs that are captured anew after an update of the weights
    capture         how it captures a graph with breaks

A patch calls:

    graph_rows.note_replay, graph_rows.rows_per_rank, limits.refuses_piecewise,
    limits.some_size_fits, limits.warn_if_short, pausing.cache_region, pausing.pausable,
    recapture.recapture.
"""
