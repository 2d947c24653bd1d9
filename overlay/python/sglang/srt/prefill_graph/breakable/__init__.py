"""The breakable graph: the layer stack alone is captured, and a batch may have any number of
requests. Modules, low to high:

    lifetimes     what a graph with breaks has to keep alive
    graph         a graph with breaks, for releases that have none
    mixers        the break at a Mamba2 mixer that a layer calls beside its attention
    breaks        the break that stands for a split op's function
    arguments     server arguments that cannot go together with the graph
    crossover     from how many tokens on eager prefill is as fast
    sizes         which sizes it captures where nobody chose any
    runner        what captures a model and replays its batches, and which models it refuses

A patch calls:

    arguments.add_breakable, arguments.as_breakable, arguments.check_breakable, lifetimes.OwnMemory,
    lifetimes.holder, mixers.beside_attention, runner.set_up.
"""
