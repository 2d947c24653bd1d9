"""Layers with recurrent states inside the captured graph, for any batch. Modules, low to high:

    tables           what captured launches know of their batch
    mamba2           a Mamba2 mixer's prefill
    flashinfer_rule  a gated delta rule's prefill in FlashInfer's kernel
    gdn              a gated delta net's prefill, between its projections
    layers           which layers are captured, with which tables, in the place of their breaks
    own_runner       the same in the releases' prefill runner (0.5.14 to 0.5.21)
    extend_hook      the same through upstream's own hook (from 0.5.22)

A patch calls:

    extend_hook.GatedDeltaPrefill, extend_hook.StatesPrefill, layers.run_captured,
    own_runner.offer, own_runner.why_not.
"""
