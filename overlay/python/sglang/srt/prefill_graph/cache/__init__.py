"""The prefix cache of models with recurrent states, Mamba's and gated delta nets'. Modules, low to
high:

    used_states    which state the cache gives up first

A patch calls:

    used_states.list_for.
"""
