"""Engines of several modes on one GPU that take turns: each stopped while another is measured.
Standard library only.

An engine is a process of its own (bench_engine.py) at the other end of a socket: one line of JSON
asks, one answers. Idle engines poll for requests: with eight of them on 32 hardware threads, calls
came in stretches of 40 and of 60 ms, in every mode. So from an answer until the next request an
engine's processes are stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import launch

POLL_S = 0.2


class Gone(Exception):
    """An engine that will not answer any more; its text says why."""


@dataclass
class Engine:
    """One mode's process. why: what became of it where it is gone; code: its exit code, None while
    it runs or before."""

    mode: str
    log: Path
    process: subprocess.Popen = field(repr=False)
    line: socket.socket = field(repr=False)
    began: float = field(default_factory=time.time)
    why: str = ""
    unread: bytes = b""

    def ask(self, do: str, until: float, **words: object) -> dict:
        """What the engine answers to a request. Raises Gone, and ends the engine, if it dies or is
        silent till `until`.

        until: as time.time() tells it.
        """
        began = time.time()
        _signal(self.process.pid, signal.SIGCONT)
        try:
            self.line.sendall(json.dumps({"do": do} | words).encode() + b"\n")
            while b"\n" not in self.unread:
                if time.time() > until:
                    why = f"{do}: no answer in {time.time() - began:.0f} s"
                    launch.show_stacks(self.process.pid)
                    raise Gone(why)
                if select.select([self.line], [], [], POLL_S)[0]:
                    new = self.line.recv(1 << 16)
                    self.unread += new
                    if not new:
                        raise Gone(f"{do}: exit code {self._code()}")
                elif (
                    self.process.poll() is not None
                ):  # a child that it left behind may keep the socket open
                    raise Gone(f"{do}: exit code {self._code()}")
        except (Gone, OSError) as error:
            self.why = str(error) if isinstance(error, Gone) else f"{do}: exit code {self._code()}"
            end([self])
            raise Gone(self.why) from None
        _signal(self.process.pid, signal.SIGSTOP)
        answer, self.unread = self.unread.split(b"\n", 1)
        return json.loads(answer)

    def _code(self) -> int | None:
        try:
            return self.process.wait(launch.GRACE_S)
        except subprocess.TimeoutExpired:
            return None


def begin(place: launch.Place, mode: str, script: Path, plan: dict, **environment: str) -> Engine:
    """Start an engine's process, in a session of its own: what it starts goes when it goes."""
    here, there = socket.socketpair()
    file, log = place.out / f"bench.{mode}.plan.json", place.out / f"bench.{mode}.log"
    file.write_text(json.dumps(plan | {"fd": there.fileno()}))
    with log.open("wb") as out, there:
        process = subprocess.Popen(
            [place.python, str(script), str(file)],
            env=place.environment(**environment),
            cwd=place.out,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[there.fileno()],
        )
    return Engine(mode, log, process, here)


def end(engines: Sequence[Engine]) -> None:
    """End whole sessions, all at once; what is left of them after GRACE_S is killed."""
    for number, wait_s in ((signal.SIGTERM, launch.GRACE_S), (signal.SIGKILL, launch.GRACE_S)):
        for engine in engines:
            _signal(engine.process.pid, number)
            _signal(engine.process.pid, signal.SIGCONT)  # a stopped process would not hear of it
        until = time.time() + wait_s
        while time.time() < until and any(
            engine.process.poll() is None or launch.members(engine.process.pid)
            for engine in engines
        ):
            time.sleep(0.05)
            # what was started meanwhile too
            for engine in engines if number == signal.SIGKILL else ():
                _signal(engine.process.pid, number)
    for engine in engines:
        engine.line.close()


@dataclass(frozen=True)
class Gpu:
    """What nvidia-smi says about the one GPU that this run may see; it numbers GPUs as
    CUDA_DEVICE_ORDER=PCI_BUS_ID does."""

    name: str

    @classmethod
    def here(cls) -> Gpu:
        return cls(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0")

    def used_mib(self) -> int:
        """Memory in use, by everyone."""
        return int(self._ask("--query-gpu=memory.used")[0])

    def _ask(self, query: str) -> list[str]:
        words = ["nvidia-smi", "-i", self.name, query, "--format=csv,noheader,nounits"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def _signal(leader: int, number: int) -> None:
    """Send a signal to every process of a session, whatever groups they are in."""
    for pid in launch.members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
