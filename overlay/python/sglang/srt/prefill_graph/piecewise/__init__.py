"""Split ops: what their functions become in a prefill graph, and the ops that releases lack.
Modules, low to high:

    admission        what keeps a server out of the release's piecewise graph
    rows             which rows of a split op's tensors are real, and zero in the others
    op_function      what stands for a split op's function
    split_op         how a layer method becomes an op at which the graph is split
    mamba2           the split op of a Mamba2 mixer
    bypassed_topk    MoE kernels that keep the graph off
    with_states      the piecewise graph with layers with recurrent states inside
    sparse           server arguments that keep sparse attention out of the graph
    nsa              the split ops of sparse attention

A patch calls:

    admission.admits, admission.has_layer_stack, bypassed_topk.keep_bypassed_topk_eager,
    mamba2.ran_as_split_op, nsa.attend, nsa.is_traced, nsa.select, op_function.at_op,
    sparse.admits_sparse_attention, split_op.in_prefill_graph, split_op.on_one_stream.
"""
