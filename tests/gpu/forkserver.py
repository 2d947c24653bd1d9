"""Start processes that have already imported the packages that a release's engines import.

Imports are two thirds of an engine's processor time. Its driver, its scheduler and its detokenizer
each take 15 s for them, of which 12 are packages other than sglang (0.5.16). A server process
imports those packages once, without touching CUDA. A driver is a fork of it. So are the children
that multiprocessing would start from nothing. sglang itself is imported by each process, as ever.

`python forkserver.py SOCKET`: the server. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import multiprocessing.util
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

# The last module that each of an engine's processes imports: driver, scheduler, detokenizer.
LAST = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
)
# packages that the server never imports by name: they ask for the GPU, or load its code
WITHOUT = (
    "__main__",
    "cuda",
    "deep_gemm",
    "flashinfer",
    "nvidia",
    "sgl_kernel",
    "sglang",
    "tvm_ffi",
)
# a process that has called cuInit must not be forked; until then the driver's functions return this
DRIVER, NOT_INITIALIZED = "libcuda.so.1", 3  # CUDA_ERROR_NOT_INITIALIZED, cuda.h
LOADER = ("LD_PRELOAD", "LD_LIBRARY_PATH")  # read when a program starts, which a fork does not
SPARES = 2  # children of an engine on one GPU: its scheduler, its detokenizer
LARGEST, FILES = 1 << 18, 16  # bytes and descriptors of one message
NVML_ALONE = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch asks no driver whether there is a GPU
CAPABILITY = "PREFILL_GPU"  # in the server's environment: the first GPU's, as 9.0
READY_S, BEGIN_S, LOOK_S = 240, 60, 0.1


class Unready(Exception):
    """Why there is no server to fork from."""


class Forked:
    """A process that the server forked: what launch.py asks of a subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.05)
        return code


class ForkServer:
    """A server in an environment of its own. It learns and imports while the caller does other
    things: `wait` before the first `start`."""

    def __init__(self, python: str, environment: dict[str, str], log: Path) -> None:
        self._link, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self._asked, self._lost = 0, False
        with there, log.open("wb") as out:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).resolve()), str(there.fileno())],
                env=environment | {NVML_ALONE: "1"},
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, limit_s: float = READY_S) -> str:
        """What it has imported, for a log. Raises Unready."""
        said = self._hear(limit_s, "ready")
        if said.get("why"):
            raise Unready(said["why"])
        return f"{said['ready']} modules"

    def start(
        self, words: Sequence[str], environment: dict[str, str], cwd: Path, log: int
    ) -> Forked:
        """Run a script as `python SCRIPT …` would, in a session of its own. words: the script and
        its arguments; log: the descriptor that gets its output. Raises Unready.

        The fork waits until this side has heard of it. One that is not waited for, since it came
        too late or the run was ended, ends itself.
        """
        self._asked += 1
        told = {"words": words, "env": environment, "cwd": str(cwd), "number": self._asked}
        gate, go = os.pipe()
        try:
            try:
                send(self._link, told, [log, gate])
            except OSError as reason:
                raise Unready(f"the fork server ended: {reason}") from None
            finally:
                os.close(gate)
            pid = self._hear(BEGIN_S, "began", self._asked)["began"]
            self._codes.pop(pid, None)  # of an earlier process with that number
            os.write(go, b"1")
        finally:
            os.close(go)
        return Forked(self, pid)

    def ended(self, pid: int) -> int | None:
        """The exit code of a process that `start` gave, once it has one."""
        with contextlib.suppress(Unready):
            while pid not in self._codes and self._receive(0) is not None:
                pass
        return self._codes.get(pid, 1 if self._lost else None)

    def close(self) -> None:
        """End the server. What it has started runs on."""
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _hear(self, limit_s: float, wanted: str, number: int = 0) -> dict:
        until = time.monotonic() + limit_s
        while (left := until - time.monotonic()) > 0:
            said = self._receive(left)
            if said and wanted in said and said.get("number", 0) == number:
                return said
        raise Unready(f"the fork server said nothing in {limit_s:.0f} s")

    def _receive(self, limit_s: float) -> dict | None:
        """The next message, None where none came in time. Exit codes are kept. Raises Unready where
        no more can come."""
        if not select.select([self._link], [], [], limit_s)[0]:
            return None
        said, _ = receive(self._link)
        if said is None:
            self._lost = True
            raise Unready("the fork server ended")
        if "ended" in said:
            self._codes[said["ended"]] = said["code"]
        return said


def send(link: socket.socket, message: dict, files: Sequence[int] = ()) -> None:
    socket.send_fds(link, [json.dumps(message).encode()], list(files))


def receive(link: socket.socket) -> tuple[dict | None, list[int]]:
    """The next message and its descriptors; None where the other side is gone."""
    try:
        data, files, _, _ = socket.recv_fds(link, LARGEST, FILES)
    except ConnectionError:
        return None, []
    return (json.loads(data) if data else None), files


# What follows runs in the server and in its forks.


def serve(link: socket.socket) -> Callable[[], None]:
    """Fork whenever asked to, until the client is gone. Returns in each fork: what it is to do."""
    while True:
        for pid, code in _gone():
            send(link, {"ended": pid, "code": code})
        if not select.select([link], [], [], LOOK_S)[0]:
            continue
        message, files = receive(link)
        if message is None:
            os._exit(0)  # whatever an imported package has left running
        if os.fork() == 0:
            os.setsid()
            send(link, {"began": os.getpid(), "number": message["number"]})
            link.close()
            log, gate = files
            if not os.read(gate, 1):  # nobody waits for it
                os._exit(0)
            os.close(gate)
            return lambda: drive(message, log)
        for file in files:
            os.close(file)


def _gone() -> list[tuple[int, int]]:
    """(process, exit code) of the forks that have ended since the last call."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


def drive(message: dict, log: int) -> None:
    """Become the process that a client asked for."""
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    _settle(message)
    spares: list[tuple[int, socket.socket]] = []
    for _ in range(SPARES):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for link in (here, *(link for _, link in spares)):
                link.close()
            become(there)
            return
        there.close()
        spares.append((pid, here))
    _hand_out(spares)
    _watch()
    sys.argv = message["words"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _hand_out(spares: list[tuple[int, socket.socket]]) -> None:
    """Have multiprocessing's spawned children be spares, while there are any."""
    plain = multiprocessing.util.spawnv_passfds
    began_with = [os.environ.get(name) for name in LOADER]

    def spawn(path: str | bytes, words: Sequence[str], files: Sequence[int]) -> int:
        fits = (
            spares
            and words[-1] == "--multiprocessing-fork"
            and len(files) <= FILES
            and os.fsdecode(path) == sys.executable
            and [os.environ.get(name) for name in LOADER] == began_with
        )
        if not fits:
            return plain(path, words, files)
        pid, link = spares.pop(0)
        # words: the interpreter, its options, -c, code, the last (multiprocessing/spawn.py)
        told = {"code": words[-2], "env": dict(os.environ), "cwd": os.getcwd(), "files": [*files]}
        with link:
            try:
                send(link, told, files)
            except OSError:  # too large, or the spare has ended
                return plain(path, words, files)
        return pid

    multiprocessing.util.spawnv_passfds = spawn


def become(link: socket.socket) -> None:
    """Wait as a spare. Then do what a new interpreter with these arguments would."""
    message, files = receive(link)
    if message is None:
        os._exit(0)
    link.close()
    # each descriptor under its sender's number, which the code names
    above = max(message["files"]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, message["files"], strict=True):
        os.dup2(file, number, inheritable=False)
        os.close(file)
    _settle(message)
    _watch()
    sys.argv = ["-c", "--multiprocessing-fork"]
    exec(message["code"], {"__name__": "__main__"})


def _settle(message: dict) -> None:
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["cwd"])
    if "numpy" in sys.modules:  # else every fork draws the same numbers; `random` sees to itself
        sys.modules["numpy"].random.seed()


def _watch() -> None:
    """Begin what watch/sitecustomize.py begins at an interpreter's start, now that the environment
    is this process's own."""
    begin = getattr(sys.modules.get("sitecustomize"), "watch", None)
    if begin:
        begin()
    elif os.environ.get("PREFILL_WATCH"):
        raise RuntimeError("another sitecustomize.py comes before tests/gpu/watch")


def learn() -> list[str]:
    """The names of all modules that the processes of an engine import, less WITHOUT. A fork imports
    them, so that whatever importing does to a process ends with it."""
    source, sink = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(source)
        for name in LAST:
            importlib.import_module(name)
        with open(sink, "w") as out:
            json.dump([name for name in sys.modules if name.split(".")[0] not in WITHOUT], out)
        os._exit(0)
    os.close(sink)
    with open(source) as said:
        names = said.read()
    _, status = os.waitpid(pid, 0)
    if status or not names:
        raise Unready(f"{', '.join(LAST)} cannot be imported")
    return json.loads(names)


def preload(names: Sequence[str]) -> None:
    """Import them, in the order in which an engine did. A module whose import fails here is
    skipped, with all below it; engines import it themselves. Raises Unready naming a module that
    starts CUDA, or asks of the GPU what is not known: it may take no answer for a no."""
    failed: list[str] = []
    asked: list[str] = []
    told = False
    with contextlib.ExitStack() as stack:
        for name in names:
            if name in sys.modules or any(name.startswith(f"{one}.") for one in failed):
                continue
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"skipped: {name}: {error!r}", file=sys.stderr)
                failed.append(name)
            if "torch" in sys.modules and not told:
                stack.enter_context(_told_of_gpu(sys.modules["torch"], asked))
                told = True
            if asked or _cuda_began():
                raise Unready(f"{name} asks for {', '.join(asked) or 'CUDA'}")


class _Gpu:
    """What is known of the GPU without CUDA. asked: gets the name of whatever else is wanted."""

    def __init__(self, major: int, minor: int, asked: list[str]) -> None:
        self.major, self.minor = major, minor
        self._asked = asked

    def __getattr__(self, name: str) -> NoReturn:
        self._asked.append(name)
        raise AttributeError(name)


@contextlib.contextmanager
def _told_of_gpu(torch: ModuleType, asked: list[str]) -> Iterator[None]:
    """Answer questions about the GPU that would otherwise start CUDA: torchao asks whether Triton
    can compile for it (torch/utils/_triton.py, has_triton). A module that has kept a reference to
    one of these functions gets CUDA's own answer later."""
    found = re.fullmatch(r"(\d+)\.(\d+)", os.environ.get(CAPABILITY, ""))
    if not found:
        yield
        return
    known = _Gpu(int(found[1]), int(found[2]), asked)
    answers = {
        "current_device": lambda: 0,
        "get_device_properties": lambda *_, **__: known,
        "get_device_capability": lambda *_, **__: (known.major, known.minor),
    }
    now = [True]

    def told(original: Callable, answer: Callable) -> Callable:
        @functools.wraps(original)
        def ask(*args: object, **kwargs: object) -> object:
            return (answer if now else original)(*args, **kwargs)

        return ask

    for name, answer in answers.items():
        setattr(torch.cuda, name, told(getattr(torch.cuda, name), answer))
    yield
    now.clear()
    # torch's compiler keeps what it has been told (torch/_dynamo/device_interface.py)
    kept = sys.modules.get("torch._dynamo.device_interface")
    getattr(kept, "caching_worker_device_properties", {}).clear()


def _cuda_began() -> bool:
    try:
        driver = ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # nothing has loaded it
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED


def main() -> Callable[[], None]:
    """Import, then serve. Returns in each fork what it is to do."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    signal.alarm(READY_S)  # nobody waits for longer
    gc.disable()  # a fifth of the imports' time
    try:
        preload(learn())
    except Unready as reason:
        send(link, {"ready": 0, "why": str(reason)})
        sys.exit(1)
    signal.alarm(0)
    gc.enable()
    gc.freeze()  # these objects stay, so that their pages stay shared
    os.environ.pop(NVML_ALONE)
    send(link, {"ready": len(sys.modules)})
    return serve(link)


if __name__ == "__main__":
    main()()
