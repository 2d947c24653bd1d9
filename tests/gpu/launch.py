"""Start engines on this host: their environment, several at once on each GPU, none left behind.
Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

SETTINGS = {
    # another kernel package than the release's own may be in place, and said so
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # what one engine has timed, the next one reads: Mamba2's kernels take 45 s
    "TRITON_CACHE_AUTOTUNING": "1",
    # Sparse attention: eager prefill too reads what was selected. By itself it takes a dense branch
    # for prompts of up to 2048 tokens, which no graph has (0.5.9; from 0.5.10 on).
    "SGLANG_NSA_FORCE_MLA": "1",
    "SGLANG_NSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0",
    # 0.5.13 and later know the new name: whether the old one is set is not asked (server_args.py)
    "SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0",
    # servers that start side by side fill two GPUs unevenly for a while
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
    # NVLink multicast can put the GPUs of a shared host out of service. 0.5.16's all-reduce would
    # use it (custom_all_reduce_v2.py).
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "TOKENIZERS_PARALLELISM": "false",
}
COMPILED = "FLASHINFER_WORKSPACE_BASE"  # where flashinfer keeps .cache/flashinfer/
MARK = "» "  # begins a line of an engine's log that is shown while it runs
STACKS, STACKS_S = signal.SIGUSR1, 1.0  # asks a process for its stacks; it writes meanwhile
POLL_S = 0.1  # between looks at the engines that run
GRACE_S = 5  # for an engine that has answered to end by itself
LEAD_S = 200  # how long others wait at most for the first engine of their kind


@dataclass(frozen=True)
class Place:
    """Where things lie on this host. path: folders for PYTHONPATH, first wins; out: where results
    go; python: what runs engines."""

    path: tuple[Path, ...]
    out: Path
    python: str = sys.executable

    @property
    def scratch(self) -> Path:
        """What runs need and nobody reads afterwards: weights, byte code, trees, traces. A GB or
        more, so that it lies apart."""
        return self.out / "scratch"

    @property
    def bytecode(self) -> Path:
        """Where Python keeps modules' byte code: an unpacked bundle's own folder, which `unpack`
        fills and empties; without a bundle, scratch."""
        made = (folder.parent / "bytecode" for folder in self.path)
        return next((folder for folder in made if folder.is_dir()), self.scratch / "bytecode")

    def environment(self, **more: str) -> dict[str, str]:
        left_out = ("PYTHONPATH", "PYTHONHOME")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        if "CUDA_HOME" not in kept and Path("/usr/local/cuda").is_dir():
            kept["CUDA_HOME"] = "/usr/local/cuda"
        own = self._of_another_cuda(kept) | self._compiled_attention(kept)
        path = os.pathsep.join(map(str, self.path))
        python = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(self.bytecode)}
        return kept | own | SETTINGS | more | python

    def _of_another_cuda(self, known: dict[str, str]) -> dict[str, str]:
        """Where a folder of packages has a CUDA of its own, the loader learns of both: what is
        compiled on this host wants the host's, what is preloaded before torch wants that one."""
        own = [folder / "nvidia/cuda_runtime/lib" for folder in self.path]
        found = [str(folder) for folder in own if folder.is_dir()]
        if not found:
            return {}
        host = [f"{known['CUDA_HOME']}/lib64"] if "CUDA_HOME" in known else []
        before = [known["LD_LIBRARY_PATH"]] if known.get("LD_LIBRARY_PATH") else []
        return {"LD_LIBRARY_PATH": os.pathsep.join([*found, *host, *before])}

    def _compiled_attention(self, known: dict[str, str]) -> dict[str, str]:
        """A cache of compiled kernels for each copy of FlashInfer and of what its build files name
        beside it. Its own is named by version and GPU alone, and the build files in it hold the
        packages' paths (flashinfer 0.6.12, jit/env.py and jit/cpp_ext.py): two bundles with one
        version would compile each other's kernels anew, side by side without end."""
        if known.get(COMPILED) or not any((folder / "flashinfer").is_dir() for folder in self.path):
            return {}
        found = [
            next((str((f / name).resolve()) for f in self.path if (f / name).is_dir()), "")
            for name in ("flashinfer", "tvm_ffi")
        ]
        copy = hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]
        return {COMPILED: str(Path.home() / ".cache/sglang-patch-queue/flashinfer" / copy)}

    def ask(self, code: str, limit_s: float = 300) -> object:
        """The JSON that `code`, run as the engines are, prints last. Raises RuntimeError with its
        last words."""
        words, where = [self.python, "-c", code], {"env": self.environment(), "cwd": self.out}
        kept = {"capture_output": True, "text": True}
        done = subprocess.run(words, timeout=limit_s, **where, **kept)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[-1])


@dataclass
class Job:
    """One process: a script with a plan. name: also of its files; needs: the job without whose
    answer it is worth nothing; kind: jobs of one kind compile the same kernels; place: whose tree
    it has, where not that of all; environment: more variables.

    After `run_all`: code (exit code; None where it never ran or had no time), seconds, why it did
    not do what it should, and the device (as in CUDA_VISIBLE_DEVICES) that it ran on; empty where
    none was chosen.
    """

    name: str
    script: Path
    plan: dict
    limit_s: float
    needs: str = ""
    kind: str = ""
    place: Place | None = None
    environment: dict[str, str] = field(default_factory=dict)
    code: int | None = None
    seconds: float = 0.0
    why: str = ""
    device: str = ""
    process: subprocess.Popen | None = field(default=None, repr=False)
    began: float = 0.0
    shown: int = 0


def run_all(
    place: Place,
    jobs: Sequence[Job],
    width: int,
    deadline: float,
    say: Callable[[str], None],
    lead: bool = True,
    devices: Sequence[str] = ("",),
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Run every job, `width` at once on each device. With `lead`, the first job of each kind goes
    ahead of the others until it is ready: it compiles what they reuse. devices: names for
    CUDA_VISIBLE_DEVICES; an empty one leaves the choice as it is. deadline: time.time() after which
    all ends. ended: called whenever a job has. Every job ends with its code or a reason."""
    waiting, running = list(jobs), []
    for job in jobs:
        _clear(place, job)
    try:
        while waiting or running:
            for job in running:
                _pass_on(place, job, say)
            for job in [job for job in running if _finished(job, time.time(), deadline)]:
                running.remove(job)
                say(f"{job.name}: {'done' if job.code == 0 else job.why} after {job.seconds:.0f} s")
                ended()
            waiting = _still_wanted(waiting, jobs, time.time() > deadline)
            device = min(devices, key=lambda name: sum(job.device == name for job in running))
            room = sum(job.device == device for job in running) < width
            ready = [job for job in waiting if not (lead and _follows(job, jobs))]
            if not ready or not room:
                time.sleep(POLL_S)
                continue
            waiting.remove(job := ready[0])
            job.device = device
            _begin(place, job)
            running.append(job)
            say(f"{job.name}: started{f' on GPU {device}' if len(devices) > 1 else ''}")
    finally:
        for job in jobs:
            _end(job)


def _end(job: Job) -> None:
    """What is left to do for a job when all end."""
    if job.code is None and not job.why:
        job.why = "the run was ended"
    if job.process and job.process.returncode is None:
        kill(job.process)


def _still_wanted(waiting: Sequence[Job], jobs: Sequence[Job], late: bool) -> list[Job]:
    """The waiting jobs, less those whose reference did not run; none where it is late."""
    dead, kept = {job.name for job in jobs if job.why}, []
    for job in waiting:
        if job.needs in dead:
            job.why = "its reference did not run"
        elif late:
            job.why = "not started: no time was left"
        else:
            kept.append(job)
    return kept


def _follows(job: Job, jobs: Sequence[Job]) -> bool:
    """Whether a job still waits for the first one of its kind."""
    leader = next(other for other in jobs if other.kind == job.kind)
    if leader is job or leader.code is not None or leader.why:
        return False
    ready = Path(leader.plan["out"] + ".ready").exists()
    return not ready and (not leader.began or time.time() - leader.began < LEAD_S)


def _pass_on(place: Place, job: Job, say: Callable[[str], None]) -> None:
    """Say the lines that a job means for whoever watches: those that begin with MARK."""
    with (place.out / f"{job.name}.log").open("rb") as log:
        log.seek(job.shown)
        new = log.read()
    whole = new[: new.rfind(b"\n") + 1]
    job.shown += len(whole)
    for line in whole.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            say(f"{job.name}: {line.removeprefix(MARK)}")


def _clear(place: Place, job: Job) -> None:
    """Remove what an earlier run left under the job's name: it would be taken for this one's
    answers."""
    out = Path(job.plan["out"])
    watch = Path(job.plan["watch"]) if job.plan.get("watch") else None
    noted = watch.parent.glob(f"{watch.name}.*") if watch else ()
    for file in (out, Path(f"{out}.ready"), place.out / f"{job.name}.log", *noted):
        file.unlink(missing_ok=True)
    shutil.rmtree(place.out / f"{job.name}.runtime", ignore_errors=True)


def _begin(place: Place, job: Job) -> None:
    plan, log = place.out / f"{job.name}.plan.json", place.out / f"{job.name}.log"
    plan.write_text(json.dumps(job.plan))
    # where the queue's report lies: of this engine alone
    runtime = place.out / f"{job.name}.runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    of, forget = job.plan.get, job.plan.get("forget")
    more = {
        "PREFILL_WATCH": of("watch"),
        "PREFILL_REASONS": "1" if of("reasons", True) else "",
        "PREFILL_KEEP_EAGER": "1" if of("keep_eager") else "",
        "PREFILL_FILES": "1" if of("files") else "",
        "PREFILL_FORGET": forget,
        # what a control leaves out is there for layers that break
        "SGLANG_PREFILL_GRAPH_STATES": "break" if forget else "",
        "CUDA_VISIBLE_DEVICES": job.device,
        "XDG_RUNTIME_DIR": str(runtime),
    }
    named = {name: value for name, value in more.items() if value} | job.environment
    where = job.place or place
    with log.open("wb") as out:
        job.process = spawn(where, [str(job.script), str(plan)], where.environment(**named), out)
    job.began = time.time()


def spawn(
    place: Place, words: Sequence[str], environment: dict[str, str], log: IO[bytes]
) -> subprocess.Popen:
    """Start a script, in a session of its own: what it starts goes when it goes."""
    command, said = [place.python, *words], {"stdout": log, "stderr": subprocess.STDOUT}
    where = {"env": environment, "cwd": place.out}
    return subprocess.Popen(command, start_new_session=True, **where, **said)


def _finished(job: Job, now: float, deadline: float) -> bool:
    job.seconds = now - job.began
    written, ended = Path(job.plan["out"]).exists(), job.process.poll() is not None
    if not ended:
        # engines sometimes hang while they clean up
        answered = written and now - Path(job.plan["out"]).stat().st_mtime > GRACE_S
        if not answered and job.seconds <= job.limit_s and now <= deadline:
            return False
    if not ended and not written:
        show_stacks(job.process.pid)
    kill(job.process)  # what is left of an ended one too
    job.code = 0 if written else (job.process.returncode or 1) if ended else -1
    if not written and not ended and job.seconds <= job.limit_s:
        job.code, job.why = None, f"no time was left after {job.seconds:.0f} s"
    elif not written:
        late = f"ended after {job.seconds:.0f} s without an answer"
        job.why = f"exit code {job.process.returncode}" if ended else late
    return True


def kill(process: subprocess.Popen) -> None:
    """End a process and all that it started, what it starts meanwhile too. It has nothing to save,
    and an engine may wait forever for its own clean-up."""
    until = time.time() + GRACE_S
    while time.time() < until and (left := members(process.pid)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


def show_stacks(leader: int) -> None:
    """Have the Python processes of a session write into their logs what each thread is at, for
    whoever asks why an engine took too long. watch/sitecustomize.py listens."""
    told = [pid for pid in members(leader) if _listens(pid)]
    for pid in told:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS)
    if told:
        time.sleep(STACKS_S)


def _listens(pid: int) -> bool:
    """Whether a process would survive STACKS: another one ends by it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):  # proc(5)
                return bool(int(line.split()[1], 16) & 1 << (STACKS - 1))
    return False


def members(leader: int) -> list[int]:
    """The processes of a session, less those that have ended and wait for a parent to notice."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # proc(5)
            state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def last_words(place: Place, job: Job, lines: int = 12) -> str:
    """The end of a job's log, for a failure's report."""
    log = place.out / f"{job.name}.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""
