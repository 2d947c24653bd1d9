"""Layers with recurrent states inside the captured graph, for any batch. Modules, low to high:

    tables        what captured launches know of their batch
    mamba2        a Mamba2 mixer's prefill
    gdn           a gated delta net's prefill, between its projections
    layers        which layers are captured, and what runs in the place of their breaks
    states        the tables of each size, and which size a batch replays
    own_runner    the same in the releases' prefill runner from 0.5.14 on, where asked for
    extend_hook   the same through upstream's own hook (from 0.5.22), where it is asked for
    delta_hook    gated delta nets through it (0.5.23)

A patch calls:

    delta_hook.GatedDeltaPrefill, extend_hook.Mamba2Prefill, extend_hook.captures,
    layers.run_captured, own_runner.padded, own_runner.prepared, own_runner.why_not,
    own_runner.with_states.
"""
