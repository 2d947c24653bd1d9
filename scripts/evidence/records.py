"""What the files of evidence/ hold, as far as something here reads it. They hold more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict, replace

SCHEMA = 1
Verdict = Literal["passed", "not applicable", "failed", "not run"]
Attention = Literal["flashinfer", "fa3"]
USUAL_ATTENTION: Attention = "flashinfer"
ATTENTIONS = {"flashinfer": "FlashInfer", "fa3": "FlashAttention 3"}


class Gpu(Struct, frozen=True):
    name: Annotated[str, Meta(pattern="[A-Za-z0-9]")]
    driver: str = ""


class Torch(Struct, frozen=True):
    """off_pin: whether it is another version than the release pins."""

    version: str
    pinned: str
    off_pin: bool


class Kernel(Struct, frozen=True):
    """The package with the kernels, where it is not the release's own."""

    package: str
    reason: str = ""


class Shim(Struct, frozen=True):
    module: str
    reason: str


class Check(Struct, frozen=True):
    good: bool


class Lifetimes(Struct, frozen=True):
    """Whether what the breakable graph's breaks hold lived long enough."""

    verdict: Verdict
    why: str = ""


class Captured(Struct, frozen=True):
    """A graph's capture, as the log says it."""

    what: str
    seconds: float = 0.0
    gb: float = 0.0

    @property
    def of_prefill(self) -> bool:
        """The decode graph is `cuda graph` in older releases, `target decode CUDA graph` in
        0.5.16."""
        return self.what != "cuda graph" and "decode" not in self.what


class Named(Struct, frozen=True):
    name: str


class Host(Struct, frozen=True):
    """What a run was made under, where its file does not say so."""

    changes: str | UnsetType = UNSET
    date: str | UnsetType = UNSET
    gpu: Gpu | UnsetType = UNSET
    harness: str | UnsetType | None = UNSET
    kernel: Kernel | UnsetType | None = UNSET
    lifetimes: Lifetimes | UnsetType | None = UNSET
    torch: Torch | UnsetType = UNSET


class Run(Struct, frozen=True, kw_only=True):
    """One model in one mode."""

    mode: str
    verdict: Verdict
    why: str = ""
    model: str = ""
    seconds: float = 0.0
    checks: tuple[Check, ...] = ()
    captured: tuple[Captured, ...] = ()
    host: Host = Host()

    @property
    def prefill_capture(self) -> tuple[Captured, ...]:
        return tuple(one for one in self.captured if one.of_prefill)


class Found(Struct, frozen=True, kw_only=True):
    """What every file says: which release and tree a host ran, and on what.

    queue, changes: identities of the queue and of what it does; tree: the hash of the patched tree.
    """

    schema: Literal[1]
    version: str
    queue: str
    changes: str
    tree: str
    tree_untouched: bool
    gpu: Gpu
    torch: Torch


class Record(Found, frozen=True, kw_only=True):
    """One file: what a host found about one release.

    harness: the rules that tests/gpu judged by; attention: whose kernels, for plain attention.
    """

    runs: tuple[Run, ...]
    tag: str = ""
    date: str = ""
    harness: str | None = None
    kernel: Kernel | None = None
    lifetimes: Lifetimes | None = None
    seconds: float = 0.0
    capture: tuple[int, ...] = ()
    patches: tuple[Named, ...] = ()
    attention: Attention = USUAL_ATTENTION

    @property
    def title(self) -> str:
        return f"{self.version} on {self.gpu.name}{self.attention_told}"

    @property
    def attention_told(self) -> str:
        """Whose attention kernels ran, behind a comma; the usual ones go without saying."""
        return "" if self.attention == USUAL_ATTENTION else f", {ATTENTIONS[self.attention]}"

    def under(self, run: Run) -> Record:
        """The same with what this run was made under."""
        own = {name: value for name, value in asdict(run.host).items() if value is not UNSET}
        return replace(self, **own)


class Calls(Struct, frozen=True):
    """First tokens of one shape, in milliseconds. lost: turns that did not count, where turns were
    watched."""

    all: tuple[float, ...] = ()
    median: float = 0.0
    lost: int | None = None


class Load(Struct, frozen=True):
    """One round of the load."""

    round: int
    tokens_per_s: float
    mean_latency_s: float = 0.0
    prefill_tokens: int | float = 0


class Prefills(Struct, frozen=True):
    on_graph: int = 0
    prefills: int = 0


class TimedRun(Run, frozen=True, kw_only=True):
    """One engine of a bench or of a gain. session: engines of one took turns."""

    session: str = ""
    running: int | None = None
    loads: tuple[Load, ...] = ()
    first_token_ms: dict[str, Calls] = field(default_factory=dict)
    memory_mib: dict[str, float | None] = field(default_factory=dict)
    prefills: Prefills = Prefills()


class Timed(Record, frozen=True, kw_only=True):
    """A bench or a gain. idle: how engines wait for their turn; beside: what else the host did;
    remark: added by hand, about a condition that was found out later.

    earlier_queue: whether the queue does something else to the release now; not in the file.
    """

    runs: tuple[TimedRun, ...]
    model: str
    python: str
    queue_release: int | None = None  # of a tree that was made without a wheel
    subject: str = "nemotron"
    cpus: int = 0
    idle: str | None = None
    beside: str = ""
    remark: str = ""
    shims: tuple[Shim, ...] = ()
    earlier_queue: bool = False


class BenchLoad(Struct, frozen=True):
    """What a bench sends."""

    requests: int
    in_flight: int
    mean_prompt: int | float
    shared_prefix: int
    mean_answer: int | float
    prefix_cache: bool
    chunk: int
    capture: tuple[int, ...]


class Bench(Timed, frozen=True, kw_only=True):
    """Graph modes beside each other."""

    load: BenchLoad


class Group(Struct, frozen=True):
    """Kernels of one kind."""

    ms: float


class Profile(Struct, frozen=True):
    """One prefill. busy_ms: in which any kernel ran."""

    busy_ms: float
    launches: float
    forwards: float
    groups: dict[str, Group]


class LoadProfile(Struct, frozen=True):
    busy: float


class Clock(Struct, frozen=True):
    """The GPU under the load; all zero of no samples."""

    samples: int = 0
    sm_mhz: float = 0.0
    watts: float = 0.0
    power_capped: float = 0.0


class Served(Struct, frozen=True):
    """One load of users. first_ms: of first tokens, by "p50", "p90" and "p99"; later_ms: of those
    behind, empty where each answer is one token."""

    output_tokens_per_s: float
    first_ms: dict[str, float]
    input_tokens_per_s: float = 0.0
    later_ms: dict[str, float] | None = None

    @property
    def rate(self) -> float:
        """Tokens a second: written ones, or read ones where each answer is one token."""
        return self.input_tokens_per_s if self.later_ms == {} else self.output_tokens_per_s


class Repeated(Struct, frozen=True):
    """A prefill that followed itself `times` times. ms: of one; forwards: that it took, whose
    milliseconds are added up."""

    ms: float
    times: int
    forwards: int = 1


class GainRun(TimedRun, frozen=True, kw_only=True):
    """One visit of a tree. mode_why: why it is that mode; states: what its environment said of
    layers with recurrent states."""

    tree: str
    mode_why: str = ""
    states: str | None = None
    first_answer_s: float | None = None
    profile: dict[str, Profile] = field(default_factory=dict)
    back_to_back: dict[str, Repeated] = field(default_factory=dict)
    load_profile: LoadProfile | None = None
    clock: Clock = Clock()
    traffic: dict[str, tuple[Served, ...]] = field(default_factory=dict)


class GainLoad(Struct, frozen=True):
    prompt: int
    in_flight: int


class GainPlan(Struct, frozen=True):
    """What a gain measures. own_kernels: whether each engine compiled its own; traffic: kinds of
    loads of users, in place of shapes."""

    shapes: tuple[str, ...]
    load: GainLoad
    pause_s: float = 0.0
    own_kernels: bool = False
    traffic: tuple[str, ...] = ()


class Rate(Struct, frozen=True):
    """One large product of matrices."""

    size: int = 0
    tflops: float | None = None


class PeerProfile(Struct, frozen=True):
    """One prefill of a peer. busy_ms: in which any kernel ran; groups: of kernels."""

    busy_ms: float
    launches: float
    groups: dict[str, Group] = field(default_factory=dict)


class Peer(Struct, frozen=True, kw_only=True):
    """Another engine's visit in a gain. mode: how it was asked to prefill, in its own words;
    prefills: of an sglang, how they ran."""

    name: str
    verdict: Verdict
    version: str = ""
    mode: str = ""
    why: str = ""
    first_token_ms: dict[str, Calls] = field(default_factory=dict)
    loads: tuple[Load, ...] = ()
    profile: dict[str, PeerProfile] = field(default_factory=dict)
    prefills: Prefills | None = None

    @property
    def title(self) -> str:
        """As a table names it: "vllm 0.26.0"."""
        return f"{self.name} {self.version}".rstrip()


class Gain(Timed, frozen=True, kw_only=True):
    """The untouched and the patched release. floor_ms: of each shape the matrix products alone;
    peers: other engines in the same run."""

    gain: GainPlan
    runs: tuple[GainRun, ...]
    peers: tuple[Peer, ...] = ()
    floor_ms: dict[str, float | None] = field(default_factory=dict)
    rate: Rate = Rate()


def spoken(shape: str) -> str:
    """Requests and tokens: "8x64" -> "8 × 64"."""
    return shape.replace("x", " × ")


class Figure(Struct, frozen=True):
    """One measured promise. shown: the value for people; details: every single number."""

    name: str
    shown: str
    limit: str
    met: bool
    details: dict[str, Any] = field(default_factory=dict)


class Machine(Struct, frozen=True):
    cpus: int
    load: tuple[float, ...]
    python: str
    system: str


class Figures(Struct, frozen=True):
    """evidence/figures.json: what was measured of the tool."""

    revision: str
    machine: Machine
    figures: tuple[Figure, ...]
