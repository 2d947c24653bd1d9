"""An engine as a process of its own (bench_engine.py, peer_engine.py) at the other end of a socket:
one line of JSON asks, one answers. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import launch

POLL_S = 0.2


class Gone(Exception):
    """An engine that will not answer any more; its text says why."""


@dataclass
class Engine:
    """One engine's process. name: of its files."""

    name: str
    log: Path
    process: subprocess.Popen = field(repr=False)
    line: socket.socket = field(repr=False)
    began: float = field(default_factory=time.time)
    unread: bytes = b""

    def ask(self, do: str, until: float, **words: object) -> dict:
        """What the engine answers to a request. Raises Gone, and ends the engine, if it dies or is
        silent till `until`, as time.time() tells it."""
        try:
            self.line.sendall(json.dumps({"do": do} | words).encode() + b"\n")
            self._read_line(do, until)
        except (Gone, OSError) as error:
            why = str(error) if isinstance(error, Gone) else self._ended(do)
            self.end()
            raise Gone(why) from None
        answer, self.unread = self.unread.split(b"\n", 1)
        return json.loads(answer)

    def _read_line(self, do: str, until: float) -> None:
        began = time.time()
        while b"\n" not in self.unread:
            if time.time() > until:
                launch.show_stacks(self.process.pid)
                raise Gone(f"{do}: no answer in {time.time() - began:.0f} s")
            if select.select([self.line], [], [], POLL_S)[0]:
                new = self.line.recv(1 << 16)
                self.unread += new
                if not new:
                    raise Gone(self._ended(do))
            elif self.process.poll() is not None:
                # a child that it left behind may keep the socket open
                raise Gone(self._ended(do))

    def _ended(self, do: str) -> str:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(launch.GRACE_S)
        return f"{do}: exit code {code}"

    def end(self) -> None:
        """End the process and all that it started, what it starts meanwhile too."""
        launch.kill(self.process)
        until = time.time() + launch.GRACE_S
        while time.time() < until and (left := launch.members(self.process.pid)):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.line.close()


def begin(place: launch.Place, name: str, script: Path, plan: dict, **environment: str) -> Engine:
    """Start an engine's process."""
    here, there = socket.socketpair()
    file, log = place.out / f"bench.{name}.plan.json", place.out / f"bench.{name}.log"
    file.write_text(json.dumps(plan | {"fd": there.fileno()}))
    with log.open("wb") as out, there:
        how = {"stdin": subprocess.DEVNULL, "pass_fds": [there.fileno()]}
        words = [str(script), str(file)]
        process = launch.spawn(place, words, place.environment(**environment), out, **how)
    return Engine(name, log, process, here)
