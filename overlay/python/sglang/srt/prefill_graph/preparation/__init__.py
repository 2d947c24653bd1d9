"""What a prefill prepares before its layers, without asking the GPU for what the host knows: a copy
to the host waits for the whole batch before. Modules, low to high:

    known             tensors on a GPU whose values the host has too
    attention_plans   FlashInfer's plans of a prefill
    mamba2_chunks     Mamba2's chunks of a prefill

A patch calls:

    attention_plans.know, attention_plans.offsets, mamba2_chunks.cut, mamba2_chunks.goes_on.
"""
