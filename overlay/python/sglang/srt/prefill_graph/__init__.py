"""Prefill CUDA graphs for models and releases of sglang that lack them, and the report on why a
graph is on or off.

Thin patches hook the release's own files; what they call is here. Its folders, low to high, none
imports a higher one:

    compat        how releases differ: the only place that knows, by looking for features
    model         where a model keeps its decoder layers, and what each layer is
    cache         the prefix cache of models with recurrent states
    preparation   what the host prepares for a prefill, without waiting for the GPU
    kernels       Triton kernels that do in one pass what the release does in several
    captured      layers with recurrent states inside the captured graph, for any batch
    piecewise     split ops: what their functions become, and those that this package defines
    breakable     the breakable graph: the layer stack alone, any number of requests
    report        why the graph is on or off, and what this tree was made of

The docstring of each folder lists its modules in the same order, and what a patch may call. A
release gets the modules that its patches call, and those that these import. The folders' own files
import nothing, so that a hook loads no more than it needs.

`python -m sglang.srt.prefill_graph` prints what this tree was made of and every server that runs on
this host; with
--verify it compares the tree's files with what the queue made. Where sglang's own libraries are
missing, run the folder: `python FOLDER/sglang/srt/prefill_graph --verify`.
"""
