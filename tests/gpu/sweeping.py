"""What a sweep of kernels needs beside its kernels: options, a process in which the tree's modules
are found, compiling many tiles at once, and what Triton made of a launch."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import commandline


def parser(description: str, limit_s: float) -> argparse.ArgumentParser:
    """With a sweep's options. limit_s: the default of --limit."""
    made = commandline.parser(description)
    commandline.add_place(made)
    limit = f"seconds in which all ends (default {limit_s:.0f})"
    made.add_argument("--limit", type=float, default=limit_s, help=limit)
    processes = "how many compile at once"
    made.add_argument("--processes", type=int, default=os.cpu_count(), help=processes)
    made.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return made


def run_inside(options: argparse.Namespace, script: str, words: Sequence[str] | None) -> int:
    """Run a sweep's script again where the tree's modules are found. Returns its exit code."""
    place = commandline.place_of(options)
    again = [place.python, script, *(sys.argv[1:] if words is None else words), "--inside"]
    return subprocess.run(again, env=place.environment()).returncode


def compile_all(
    work: Sequence[Any],
    compile_some: Callable[..., None],
    processes: int,
    until: float,
    *more: object,
) -> None:
    """Fill Triton's cache on disk, many at once: compiling takes longer than timing. compile_some:
    takes `more`, a part of the work, and the time at which it ends."""
    began, context = time.time(), multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=compile_some, args=(*more, work[number::processes], until))
        for number in range(processes)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    print(f"compiled {len(work)} tiles in {time.time() - began:.0f} s", flush=True)


def launched(launch: Callable[[dict[str, int]], Any], tile: dict[str, int]) -> list[Any]:
    """The compiled kernels that are launched with the tile. Raises what the launch raises."""
    from triton.runtime.jit import JITFunction

    made: list[Any] = []
    run = JITFunction.run

    def noted(kernel: Any, *args: Any, **words: Any) -> Any:
        made.append(run(kernel, *args, **words))
        return made[-1]

    with replaced(JITFunction, "run", noted):
        launch(tile)
    if not made:
        raise SystemExit("the launch's kernel was not seen")
    return made


@contextlib.contextmanager
def replaced(module: object, name: str, value: object) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)
