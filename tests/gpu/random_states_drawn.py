"""Random prefills for random_states.py, and what is found of them: standard library only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

LONGEST = 5000  # tokens of one request
WHOLE = 128  # rows of a chunk: some requests end with one
COLD, HIT, GOES_ON = "cold", "hit", "goes on"
GUARDED = 4  # slots at the end of the pool that no batch ever gets, beside slot 0


@dataclass(frozen=True)
class Request:
    """One request of a prefill. kind: whether it begins, goes on from a cached prefix, or from the
    part that an earlier batch computed.

    prefix: tokens before these. keep: behind how many of its tokens a state is kept; 0: none is.
    asked: how the scheduler says that; it says one more where more whole steps follow.
    """

    length: int
    kind: str
    slot: int
    prefix: int = 0
    keep: int = 0
    asked: int = 0
    keep_slot: int = 0


@dataclass(frozen=True)
class Batch:
    """size: of the graph that a runner has to choose for it."""

    size: int
    requests: tuple[Request, ...]

    @property
    def lengths(self) -> list[int]:
        return [one.length for one in self.requests]

    @property
    def rows(self) -> int:
        return sum(self.lengths)

    @property
    def slots(self) -> list[int]:
        return [one.slot for one in self.requests]

    @property
    def kept(self) -> list[Request]:
        return [one for one in self.requests if one.keep]

    def part(self, number: int) -> slice:
        """The rows of a request."""
        first = sum(self.lengths[:number])
        return slice(first, first + self.lengths[number])


def orders(sizes: Sequence[int], source: random.Random) -> Iterator[int]:
    """Sizes without end, so that each one comes right behind every other, and behind itself: two
    and two, the pairs shuffled."""
    pairs = [(one, other) for one in sizes for other in sizes]
    while True:
        source.shuffle(pairs)
        for pair in pairs:
            yield from pair


@dataclass
class Drawn:
    """Batches, one after the other. places: how many requests a size has room for. slots: of the
    pool. step: of how many tokens a multiple states are kept for; None: none are.

    left: slots whose request may go on, and the tokens that it has.
    """

    seed: int
    sizes: Sequence[int]
    places: Callable[[int], int]
    slots: int
    step: int | None
    left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)
        self.order = orders(self.sizes, self.source)

    def batch(self) -> Batch:
        size = next(self.order)
        lengths = self._lengths(size)
        free = [slot for slot in range(1, self.slots - GUARDED) if slot not in self.left]
        self.source.shuffle(free)
        made = []
        for length in lengths:
            made.append(self._request(length, free))
            self.left.pop(made[-1].slot, None)
        # Most requests end here; the states of some stay for a later batch.
        for one in made:
            if self.source.random() < 0.5 and len(self.left) < self.slots // 8:
                self.left[one.slot] = one.prefix + one.length
        return Batch(size, tuple(made))

    def _lengths(self, size: int) -> list[int]:
        """Of a batch that has too many rows for the next smaller size. Often it fills its size, or
        has one row more than the smaller one."""
        source, below = self.source, max((one for one in self.sizes if one < size), default=0)
        rows = source.choice([size, below + 1, *(source.randint(below + 1, size) for _ in "1234")])
        most = min(self.places(size), rows)
        few = min(4, most)
        count = source.choice([1, source.randint(1, few), source.randint(1, most), most])
        if source.random() < 0.25:  # single tokens, and one request of what is left
            cuts = list(range(1, count))
        else:
            cuts = sorted(source.sample(range(1, rows), count - 1))
        lengths = [b - a for a, b in zip([0, *cuts], [*cuts, rows])]
        source.shuffle(lengths)
        lengths = [min(length, LONGEST) for length in lengths]
        whole = [length - length % WHOLE if length > WHOLE else length for length in lengths]
        return whole if source.random() < 0.3 and sum(whole) > below else lengths

    def _request(self, length: int, free: list[int]) -> Request:
        source = self.source
        kind = source.choice([COLD, HIT, GOES_ON] if self.left else [COLD, HIT])
        if kind == GOES_ON:
            slot = source.choice(sorted(self.left))
            prefix = self.left.pop(slot)  # not for another one of this batch
        else:
            slot, prefix = free.pop(), source.randint(1, 9) * 128 if kind == HIT else 0
        keep = asked = keep_slot = 0
        if self.step and length >= self.step and source.random() < 0.6:
            steps = length // self.step
            chosen = source.randint(1, steps)
            keep, keep_slot = chosen * self.step, free.pop()
            asked = length if chosen == steps else keep + 1
        return Request(length, kind, slot, prefix, keep, asked, keep_slot)


@dataclass
class Check:
    """What one comparison found in all batches. mean, worst: the largest there were."""

    compared: int = 0
    wrong: int = 0
    mean: float = 0.0
    worst: float = 0.0
    first: str = ""

    def add(self, good: bool, where: str) -> None:
        self.compared += 1
        if not good:
            self.wrong += 1
            self.first = self.first or where


@dataclass
class Ledger:
    """Every comparison by its name. where: the batch at hand."""

    checks: dict[str, Check] = field(default_factory=dict)
    where: str = ""

    def bits(self, what: str, differing: int) -> None:
        """differing: values whose bits are others; none may be."""
        self.of(what).add(differing == 0, f"{self.where}: {differing} values")

    def near(self, what: str, apart: tuple[float, float], limits: tuple[float, float]) -> None:
        """apart, limits: in the mean and at worst. NaN is within no limit."""
        check, good = self.of(what), all(a <= limit for a, limit in zip(apart, limits))
        # max() keeps a NaN that comes first and drops one that comes later
        check.mean, check.worst = (
            old if old != old or old > new else new
            for old, new in zip((check.mean, check.worst), apart)
        )
        check.add(good, f"{self.where}: {apart[0]:.2g} in the mean, {apart[1]:.2g} at worst")

    def of(self, what: str) -> Check:
        return self.checks.setdefault(what, Check())

    @property
    def held(self) -> bool:
        """Whether something was compared, and nothing was wrong."""
        return bool(self.checks) and not any(check.wrong for check in self.checks.values())

    def table(self) -> list[str]:
        """Lines of less than 80 columns."""
        rows = [f"{'':40}{'compared':>9}{'wrong':>7}{'mean':>10}{'worst':>10}"]
        for what, check in self.checks.items():
            far = f"{check.mean:10.2g}{check.worst:10.2g}" if check.worst or check.mean else ""
            rows.append(f"{what:40}{check.compared:9}{check.wrong:7}{far}")
            if check.first:
                rows.append(f"    first in {check.first}"[:79])
        return rows
