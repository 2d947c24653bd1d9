"""Split ops: what their functions become in a prefill graph, and the ops that releases lack. Modules, low to high:

    rows           which rows of a split op's tensors are real, and zero in the others
    op_function    what stands for a split op's function
    split_op       how a layer method becomes an op at which the graph is split
    mamba2, gdn    the split op of each kind of layer
    sparse         server arguments that keep sparse attention out of the graph
    nsa            the split ops of sparse attention

A patch calls:

    gdn.gdn_with_output, mamba2.nemotron_mamba2_with_output, nsa.admit_sparse_attention, nsa.attend,
    nsa.is_traced, nsa.select, op_function.at_op, sparse.admits_sparse_attention, split_op.in_prefill_graph,
    split_op.on_one_stream.
"""
