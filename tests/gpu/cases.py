"""What an engine is asked, call by call. The same for every mode, so that answers can be compared one to one.

A call is a list of prompts sent together. Prompts are token ids, drawn from a fixed seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

CAPTURE = (16, 32, 64, 128, 256, 512)  # tokens of a forward that a graph is captured for
CHUNK = 512  # longest piece of a prompt that one forward takes
NEW_TOKENS = 8
SMALLEST, LARGEST = 10, 4000  # token ids: no special ones, all in the models' vocabulary
COLD, AGAIN, WARM = "cold", "again", "warm"
PASSES = (COLD, AGAIN, WARM)  # the cache is emptied before "again" and kept before "warm"


@dataclass(frozen=True)
class Call:
    """name: unique; kind: what it shows; prompts: token ids of each prompt."""

    name: str
    kind: str
    prompts: tuple[tuple[int, ...], ...]


def calls(seed: int = 7) -> list[Call]:
    """All calls of one pass, in order. Calls of kind "prefix" continue prompts of earlier calls."""
    source = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(SMALLEST, LARGEST) for _ in range(count))

    made = [Call(f"single-{n}", "single", (tokens(n),)) for n in (1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 129, 200, 256, 257, 400, 511, 512)]
    made += [Call(f"batch-{'-'.join(map(str, sizes))}", "batch", tuple(tokens(n) for n in sizes)) for sizes in UNEVEN]
    made += [Call(f"chunked-{n}", "chunked", (tokens(n),)) for n in (513, 700, 1024, 1300)]
    made.append(Call("chunked-beside-short", "chunked", (tokens(1500), tokens(9), tokens(70))))
    first = {call.name: call.prompts[0] for call in made}
    for base, more in (("single-100", 3), ("single-256", 60), ("single-512", 40), ("chunked-1300", 600)):
        made.append(Call(f"prefix-{base}-{more}", "prefix", (first[base] + tokens(more),)))
    made.append(Call("prefix-batch", "prefix", tuple(first["single-200"] + tokens(n) for n in (5, 33, 130))))
    for length in (60, 250):  # the same end behind another beginning: the answer must differ, or the state says nothing
        end = tokens(40)
        made += [Call(f"memory-{length}-{which}", "memory", (tokens(length) + end,)) for which in "ab"]
    return made


UNEVEN = ((3, 40), (1, 17, 64, 9), (120, 7, 33, 250, 16, 2, 77), (5,) * 12, (200, 1, 31, 32, 33, 100, 64, 15, 128, 3, 50, 90, 6, 11, 27, 256))


def memory_pairs(made: list[Call]) -> list[tuple[str, str]]:
    """The names of the calls that differ in their beginning only."""
    names = [call.name for call in made if call.kind == "memory"]
    return list(zip(names[::2], names[1::2]))
