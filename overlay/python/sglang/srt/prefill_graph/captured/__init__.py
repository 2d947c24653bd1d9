"""Layers with recurrent states inside the captured graph, for any batch. Modules, low to high:

    tables    what captured launches know of their batch
    mamba2    a Mamba2 mixer's prefill
    gdn       a gated delta net's prefill, between its projections
    layers    which layers are captured, and what runs in the place of their breaks

A patch calls:

    layers.run_captured.
"""
