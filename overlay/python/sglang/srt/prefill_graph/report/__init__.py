"""Why the prefill graph is on or off, and what this tree was made of. Modules, low to high:

    provenance    what this tree was made of, and whether it still is that
    records       the records that servers left on this host
    verdict       why the graph of this server is on or off

A patch calls:

    provenance.log_tree, verdict.report_prefill_graph.
"""
