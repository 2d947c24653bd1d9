"""Prefill CUDA graphs for models and releases of sglang that lack them, and the report on why a graph is on or off.

Thin patches hook the release's own files; what they call is here. Modules, low to high, none imports a higher one:

    provenance          what this tree was made of, and whether it still is that
    compat              how releases differ (the only place that knows)
    kernels/            Triton kernels that do in one pass what the release does in several
    stack               where a model keeps its decoder layers
    lifetimes           what a graph with breaks has to keep alive
    breakable_graph     a graph with breaks, for releases that have none
    rows                which rows of a split op's tensors are real, and zero in the others
    breaks              what stands for a split op's function: such a break, and those rows
    arguments           server arguments that cannot go together with a graph
    layers, split_op    what each layer is; how a layer method becomes an op at which the graph is split
    mamba2, gdn, nsa    the split op of each kind of layer
    tracked_states      the Mamba2 states that the prefix cache keeps of a prefill
    breakable           the breakable graph's runner: the layer stack alone, any number of requests
    report, __main__    the record of why the graph is on or off, and its command line

`python -m sglang.srt.prefill_graph` prints what this tree was made of and every server that runs on this host; with
--verify it compares the tree's files with what the queue made.
Importing the package imports nothing else.
"""
