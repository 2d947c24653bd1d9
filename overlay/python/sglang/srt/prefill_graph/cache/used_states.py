"""Which state the prefix cache of a hybrid model gives up first, on releases before 0.5.16. A
request starts from one state alone; the releases refresh those before it too, so that whole
sessions go at once, with the state that their next turn would start from."""

from typing import Any

from sglang.srt.mem_cache.mamba_radix_cache import LRUList, MambaRadixCache


def list_for(cache: Any) -> Any:
    """A new list of `cache`'s states; the release's own for a cache of another class."""
    return UsedStates() if type(cache) is MambaRadixCache else LRUList(mamba=True)


class UsedStates(LRUList):
    """States by when one was last computed or started from."""

    def __init__(self) -> None:
        super().__init__(mamba=True)
        self._removed = None, None  # the state that was last taken out, and the node before it

    def reset_node_and_parents_mru(self, node: Any, root_node: Any) -> None:
        """A request starts from the state of `node`, and from none of its parents'."""
        if node != root_node and node.mamba_value is not None:
            super().reset_node_mru(node)

    def reset_node_mru(self, node: Any) -> None:
        """An insert passes `node`: no request starts from its state."""

    def remove_node(self, node: Any) -> None:
        self._removed = node.mamba_value, getattr(node, self.prv)
        super().remove_node(node)

    def insert_mru(self, node: Any) -> None:
        """A new state comes first. One whose tokens were split comes back to its place: the cache
        takes it out for that long."""
        (state, before), self._removed = self._removed, (None, None)
        if state is None or node.mamba_value is not state:
            super().insert_mru(node)
        else:
            self.cache[node.id] = node
            self._add_node_after(before, node)

    def sanity_check(self, tree_cache: Any) -> None:
        """What the release checks of an idle server, except the order, whose time stamps are those
        of the tokens. Raises RuntimeError, which ends the server as the release's own check
        does."""
        newest, oldest = self._along(self.head, self.nxt), self._along(self.tail, self.prv)
        free = [
            node.mamba_value
            for node in newest
            if node.mamba_value is not None and not node.mamba_lock_ref
        ]
        live = {node.id for node in tree_cache._collect_nontombstone_nodes()}
        locked = [node.id for node in newest if node.full_lock_ref or node.mamba_lock_ref]
        listed = [node.id for node in newest]
        wrong = {
            "the two directions differ": newest != oldest[::-1],
            "the list differs from the tree": (
                len(listed) != len(live) or set(listed) != live or live != set(self.cache)
            ),
            f"locked while idle: {locked}": locked,
            "the evictable size differs": tree_cache.mamba_evictable_size() != sum(map(len, free)),
        }
        found = [text for text, is_so in wrong.items() if is_so]
        if found:
            raise RuntimeError(
                f"the list of Mamba states is damaged: {'; '.join(found)}; in the list {listed}, in"
                f" the tree {sorted(live)}"
            )

    def _along(self, end: Any, step: Any) -> Any:
        nodes, node = [], getattr(end, step)
        while node not in (self.head, self.tail):
            nodes.append(node)
            node = getattr(node, step)
        return nodes
