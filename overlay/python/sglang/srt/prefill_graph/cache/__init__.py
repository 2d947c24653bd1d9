"""The prefix cache of models with recurrent states, Mamba's and gated delta nets'. Modules, low to
high:

    state_slots    when slots of states are emptied, copied and given back
    used_states    which state the cache gives up first
    kept_states    whether the state of a request that ends may be kept

A patch calls:

    state_slots.order_behind_forwards, state_slots.empty, state_slots.give_back;
    used_states.list_for;
    kept_states.newer_than_key.
"""
