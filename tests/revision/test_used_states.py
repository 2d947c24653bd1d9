"""Which Mamba states the release's own prefix cache gives up first. No state is computed here."""

import random
from array import array
from types import SimpleNamespace

import pytest
import torch
from host import late, prefix_cache

with late.modules():
    from sglang.srt.mem_cache import hi_mamba_radix_cache, mamba_radix_cache, radix_cache
    from sglang.srt.prefill_graph.cache import used_states

pytestmark = pytest.mark.revision(">=0.5.5,<0.5.16")
# where HiCache has a cache of such models, with lists of its own
HICACHE = pytest.mark.revision(">=0.5.10")

TURN = 8  # tokens


class States:
    """Slots for states, as the cache asks the pool for them."""

    def __init__(self):
        self.freed = []

    def free(self, value):
        self.freed += value.tolist()


class Cache:
    """The release's MambaRadixCache, with the arguments that this release's methods take."""

    def __init__(self, kind=None):
        self.states, self.count = States(), 0
        pools = SimpleNamespace(mamba_pool=self.states, mamba_allocator=self.states)
        self.real = prefix_cache.build(kind or mamba_radix_cache.MambaRadixCache, pools)

    def insert(self, tokens):
        """The state behind `tokens` is offered: its name, or None where the cache had one there."""
        self.count += 1
        value = dict(value=torch.arange(len(tokens)), mamba_value=torch.tensor([self.count]))
        known = self._call("insert", "InsertParams", key=self._key(tokens), **value)
        return None if known[1] else self.count

    def match(self, tokens):
        """A request comes: how many tokens it need not compute, and the node of its first state."""
        found = self._call("match_prefix", "MatchPrefixParams", key=self._key(tokens))
        return len(found.device_indices), found.last_device_node

    def order(self):
        """The states in the cache, the first to go first."""
        states, node = self.real.mamba_lru_list, self.real.mamba_lru_list.tail.mamba_prev
        names = []
        while node is not states.head:
            names += node.mamba_value.tolist()
            node = node.mamba_prev
        return names

    def _key(self, tokens):
        return radix_cache.RadixKey(array("q", tokens), None)

    def _call(self, name, params, **given):
        return prefix_cache.call(self.real, name, params, **given)


@pytest.fixture
def build(monkeypatch):
    """build(): an empty cache."""
    monkeypatch.setattr(
        mamba_radix_cache,
        "get_global_server_args",
        lambda: SimpleNamespace(mamba_cache_chunk_size=64),
        raising=False,
    )
    # of its check
    monkeypatch.setattr(
        mamba_radix_cache, "get_tensor_model_parallel_rank", lambda: 0, raising=False
    )
    return Cache


def session(name, turns):
    """The prompt of a session's next turn: all of the turns so far. Sessions begin alike."""
    return [0] * TURN + [1000 * name + n for n in range(TURN * turns)]


def test_the_tokens_are_refreshed_as_before(build):
    """All of a cached beginning is read again, so all of it is recent."""
    cache = build()
    for turn in (1, 2, 3):
        cache.insert(session(1, turn))
    cache.insert(session(2, 1))
    _, used = cache.match(session(1, 3))
    tokens, nodes = cache.real.full_lru_list, []
    node = tokens.head.next
    while node is not tokens.tail:
        nodes.append(node)
        node = node.next
    path = []
    while used is not cache.real.root_node:
        path.append(used)
        used = used.parent
    assert nodes[: len(path)] == path


@pytest.mark.parametrize("seed", range(4))
def test_the_state_that_is_unused_for_longest_goes_first(build, seed):
    """Requests that share beginnings, at random, beside a list that a reader can follow; and the
    release's check of an idle server."""
    draw, cache, unused = random.Random(seed), build(), []
    for _ in range(150):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 9))]
        what = draw.choice(["ask", "ask", "insert", "give up", "give up a token"])
        if what == "ask":
            found = cache.match(tokens)[1].mamba_value
            if found is not None:
                unused.remove(found.item())
                unused.append(found.item())
        elif what == "insert":
            name = cache.insert(tokens)
            unused += [name] if name else []
        elif what == "give up" and unused:
            cache.real.evict_mamba(1)
            assert cache.states.freed[-1] == unused.pop(0)
        elif what == "give up a token" and unused:
            before = len(cache.states.freed)
            cache.real.evict_full(1) if hasattr(cache.real, "evict_full") else cache.real.evict(1)
            unused = [name for name in unused if name not in cache.states.freed[before:]]
        assert cache.order() == unused
        cache.real.sanity_check()


def test_a_locked_state_stays(build):
    cache = build()
    locked, free = cache.insert([1] * 4), cache.insert([2] * 4)
    _, node = cache.match([1] * 4)
    cache.match([2] * 4)
    cache.real.inc_lock_ref(node)
    cache.real.evict_mamba(2)
    assert cache.states.freed == [free] and cache.order() == [locked]
    with pytest.raises(Exception, match="locked"):
        cache.real.sanity_check()
    with pytest.raises(RuntimeError) as found:  # and nothing else is wrong
        cache.real.mamba_lru_list.sanity_check(cache.real)
    assert "locked while idle" in str(found.value) and "evictable" not in str(found.value)


@pytest.mark.parametrize(
    "damage", ["lost from the list", "lost from the tree", "one direction", "size"]
)
def test_a_damaged_list_is_found(build, damage):
    cache = build()
    for turn in (1, 2, 3):
        cache.insert(session(1, turn))
    states = cache.real.mamba_lru_list
    node = states.tail.mamba_prev
    if damage == "lost from the list":
        states.remove_node(node)
    elif damage == "lost from the tree":
        node.mamba_value = None
    elif damage == "one direction":
        node.mamba_prev = states.head
    else:
        cache.real.mamba_evictable_size_ += 1
    with pytest.raises(RuntimeError, match="list of Mamba states is damaged"):
        states.sanity_check(cache.real)


@HICACHE
def test_a_cache_with_lists_of_its_own_keeps_them():
    """HiCache's moves nodes itself, and its check wants the order of the tokens' time stamps."""
    cache = object.__new__(hi_mamba_radix_cache.HiMambaRadixCache)
    assert type(used_states.list_for(cache)) is mamba_radix_cache.LRUList
