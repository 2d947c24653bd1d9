"""What an engine is asked, call by call. The same for every mode, so that answers can be compared
one to one.

A call is a list of prompts sent together. Prompts are token ids, drawn from a fixed seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import modes

CAPTURE = (16, 32, 64, 128, 256, 512)  # tokens of a forward that a graph is captured for
CHUNK = 512  # longest piece of a prompt that one forward takes
NEW_TOKENS = 8
LONG = 2600  # tokens of a prompt of which sparse attention selects 2048
SMALLEST, LARGEST = 10, 4000  # token ids: no special ones, all in the models' vocabulary
# The cache is emptied before each pass but "warm", which finds there what was asked just before.
COLD, AGAIN, WARM, SIZES, ALONE = "cold", "again", "warm", "sizes", "alone"
# Of servers with other arguments: settings.py. A reference is asked "mixed" with log-probabilities,
# which are never mixed.
CONTEXT, RETURNED, MIXED, MIXED_EAGERLY = "context", "returned", "mixed", "mixed eagerly"
ASKED_ALONE = "-alone"  # behind a pass's name: each of its prompts in a call of its own
# behind a pass's name: its batches prompt by prompt, and its single prompts beside another
ASKED_BESIDE = "-beside"
ONE_SIZE, UNDER = 256, 3  # one captured size, filled to the last token and to UNDER less
REQUESTS = (1, 2, 8, 16)  # prompts that share it
SHORT_CONTEXT = 2048  # of a server whose largest graphs would otherwise be longer
# the last one takes more than one forward
UNEVEN = ((1, 17, 64, 9), (5,) * 12, (200, 1, 31, 256, 64, 15, 128, 3))


@dataclass(frozen=True)
class Call:
    """name: unique; kind: what it shows; prompts: token ids of each prompt; new_tokens: how many to
    answer with."""

    name: str
    kind: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int = NEW_TOKENS


def calls(seed: int = 7) -> list[Call]:
    """All calls of one pass, in order. Calls of kind "prefix" continue prompts of earlier calls."""
    source = random.Random(seed)

    def of(name: str, kind: str, *lengths: int, behind: tuple[int, ...] = ()) -> Call:
        return Call(name, kind, tuple(behind + drawn(source, length) for length in lengths))

    singles = (1, 2, 15, 16, 17, 64, 65, 100, 200, 257, 511, 512)
    made = [of(f"single-{n}", "single", n) for n in singles]
    for count, total in itertools.product(REQUESTS, (ONE_SIZE, ONE_SIZE - UNDER)):
        made.append(of(f"fill-{total}-by-{count}", "batch", *parts(source, total, count)))
    made += [of(f"batch-{'-'.join(map(str, sizes))}", "batch", *sizes) for sizes in UNEVEN]
    made += [of(f"chunked-{n}", "chunked", n) for n in (513, 1024, 1300)]
    made.append(of("chunked-beside-short", "chunked", 1500, 9, 70))
    first = {call.name: call.prompts[0] for call in made}
    # beginnings of 256 tokens and more: from 0.5.14 on a hybrid model's states are kept for whole
    # chunks (mamba_chunk_size) alone
    bases = {"single-257": 3, f"fill-{ONE_SIZE}-by-1": 60, "single-512": 40, "chunked-1300": 600}
    for base, more in bases.items():
        made.append(of(f"prefix-{base}-{more}", "prefix", more, behind=first[base]))
    made.append(of("prefix-batch", "prefix", 5, 33, 130, behind=first["single-200"]))
    # the same end behind another beginning: the answer must differ, or the state says nothing
    for length in (60, 250):
        end = drawn(source, 40)
        for which in "ab":
            beginning = drawn(source, length)
            made.append(Call(f"memory-{length}-{which}", "memory", (beginning + end,)))
    made.append(of(f"chunked-{LONG}", "chunked", LONG))
    long = made[-1].prompts[0]
    return [*made, of(f"prefix-chunked-{LONG}-70", "prefix", 70, behind=long)]


def parts(source: random.Random, total: int, count: int) -> list[int]:
    """`count` uneven lengths, each at least 1, that sum to `total`."""
    cuts = [0, *sorted(source.sample(range(1, total), count - 1)), total]
    return [after - before for before, after in itertools.pairwise(cuts)]


def walk(sizes: Sequence[int]) -> list[int]:
    """An order of the sizes in which each comes once directly behind each other one: n(n-1)+1 steps
    for n sizes."""
    return [size for pair in itertools.combinations(sizes, 2) for size in pair] + [sizes[0]]


def size_calls(seed: int = 8) -> list[Call]:
    """One prompt for each step of the walk over the captured sizes, by turns filling its size and
    one token short of it. What a graph keeps of an earlier replay, or of memory that another graph
    has reused since, shows in the next answer."""
    source = random.Random(seed)
    lengths = [size - number // 2 % 2 for number, size in enumerate(walk(CAPTURE))]
    return [
        Call(f"size-{number}-{length}", "sizes", (drawn(source, length),), new_tokens=2)
        for number, length in enumerate(lengths)
    ]


def alone(made: Sequence[Call]) -> list[Call]:
    """Every prompt of the calls that have several, in calls of their own: see `gathered`."""
    several = [call for call in made if len(call.prompts) > 1]
    return [
        Call(f"{call.name}[{number}]", "alone", (prompt,))
        for call in several
        for number, prompt in enumerate(call.prompts)
    ]


def beside(made: Sequence[Call]) -> list[Call]:
    """`alone`'s calls, and every single prompt together with a short one, so that both make a
    captured size: rounding is then that of a forward of so many rows. A prompt that fills the chunk
    has no room for one."""
    found = alone(made)
    for call in (call for call in made if len(call.prompts) == 1):
        prompt = call.prompts[0]
        room = next((size - len(prompt) for size in CAPTURE if size > len(prompt)), 0)
        if room:
            other = drawn(random.Random(call.name), room)
            found.append(Call(f"{call.name}[0]", "beside", (prompt, other)))
    return found


def gathered(answers: dict, made: Sequence[Call]) -> dict:
    """The answers to the calls of `alone` or `beside` under the names of the calls that they come
    from."""
    found = {}
    for call in (call for call in made if f"{call.name}[0]" in answers):
        names = (f"{call.name}[{number}]" for number in range(len(call.prompts)))
        found[call.name] = {"answers": [answers[name]["answers"][0] for name in names]}
    return found


def within_context(seed: int = 9) -> list[Call]:
    """Calls up to a short context: the shorter ones of a pass, the longest request, and several
    that are longer together."""
    source = random.Random(seed)
    longest = SHORT_CONTEXT - NEW_TOKENS - 8  # releases keep a few positions for themselves
    found = [
        call for call in calls() if call.kind != "memory" and max(map(len, call.prompts)) <= longest
    ]
    lengths = {
        f"single-{longest}": (longest,),
        "batch-long": (1900, 1800, 1700, 1600),
        "batch-beside-long": (1900, 100, 40),
    }
    for name, sizes in lengths.items():
        found.append(Call(name, "context", tuple(drawn(source, length) for length in sizes)))
    return found


def whole_prompts() -> list[Call]:
    """The calls whose prompts one forward takes, and no cache has a beginning of: releases return
    the states of such prompts."""
    return [
        call
        for call in calls()
        if call.kind in ("single", "batch") and sum(map(len, call.prompts)) <= CHUNK
    ]


def mixed_calls(seed: int = 10) -> list[Call]:
    """Short prompts that decode while the pieces of long ones are still prefilled."""
    source = random.Random(seed)
    lengths = ((9, 70, 1500, 1300), (16, 200, 5, 1024), (1, 2, 3, 40, 64, 1400), (300, 64, 1900))
    made = (tuple(drawn(source, length) for length in sizes) for sizes in lengths)
    return [Call(f"chunked-mixed-{n}", "mixed", prompts, 16) for n, prompts in enumerate(made)]


def drawn(source: random.Random, count: int) -> tuple[int, ...]:
    """Token ids of a prompt."""
    return tuple(source.randrange(SMALLEST, LARGEST) for _ in range(count))


def passes(mode: str) -> tuple[str, ...]:
    """The passes of a mode, in order. Whether eager prefill says the same again is for the second
    engine without a graph to show."""
    if mode in modes.GRAPHS:
        return COLD, AGAIN, WARM, SIZES
    return (COLD, WARM, SIZES, ALONE) if mode in modes.REFERENCES else (COLD, WARM, SIZES)


def of_pass(name: str) -> list[Call]:
    """The calls of a pass."""
    if name.endswith(ASKED_ALONE):
        return alone(of_pass(name.removesuffix(ASKED_ALONE)))
    if name.endswith(ASKED_BESIDE):
        return beside(of_pass(name.removesuffix(ASKED_BESIDE)))
    if name == ALONE:
        return alone(calls())
    return {
        SIZES: size_calls,
        CONTEXT: within_context,
        RETURNED: whole_prompts,
        MIXED: mixed_calls,
        MIXED_EAGERLY: mixed_calls,
    }.get(name, calls)()


def memory_pairs(made: list[Call]) -> list[tuple[str, str]]:
    """The names of the calls that differ in their beginning only."""
    names = [call.name for call in made if call.kind == "memory"]
    return list(zip(names[::2], names[1::2]))
