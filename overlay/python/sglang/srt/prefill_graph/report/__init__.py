"""Why the prefill graph is on or off, what runs on it, and what this tree was made of. Modules, low
to high:

    provenance    what this tree was made of, and whether it still is that
    schedulers    which schedulers run on this host
    records       the records that they left
    requirement   whether each of them runs the tree that is asked for
    counts        how many prefills ran on the graph, and why the others did not
    verdict       why the graph of this scheduler is on or off

The entry point of a wheel, and of an install in place, is provenance.log_plugin. A patch calls:

    counts.ran_eagerly, counts.ran_on_graph, provenance.log_tree, verdict.report_prefill_graph.
"""
