"""What became of tests on the pristine tree and on the patched one: read from junit XML, and
compared."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree


class State(str, enum.Enum):
    """What became of one test on one tree."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"  # the file's process ended before it, or did not find it

    def __str__(self) -> str:
        return self.value


# Least good first: a test that a file has twice counts as the worse.
WORST_FIRST = (State.TIMED_OUT, State.NOT_RUN, State.ERROR, State.FAILED, State.SKIPPED)


@dataclass(frozen=True)
class Case:
    """A test's state, and the line that says why; "" where it passed."""

    state: State
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.state is State.PASSED

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


RETRIED = "retry() exceed maximum number of retries"  # python/sglang/test/test_utils.py
LONGEST = 200  # characters of a reason
# By test id: `FILE::CLASS::NAME`, or the file itself for what became of it as a whole.
Cases = Mapping[str, Case]

# A test's reason, in kinds that say what a host lacks; the first that is found in it counts.
KINDS = (
    (
        "needs a GPU",
        r"CUDA|cuda|nvidia|NVIDIA|GPU|HIP|rocm|active drivers|device capability|accelerator",
    ),
    (
        "needs a package that is not installed",
        r"No module named|ModuleNotFoundError|cannot import name|not installed|ImportError",
    ),
    (
        "needs a model or the network",
        r"huggingface|hf-mirror|HF_HUB|[Oo]ffline|couldn't connect|ConnectionError"
        r"|cached files|Max retries|Name or service|LocalEntryNotFound",
    ),
    ("needs a file that the checkout lacks", r"FileNotFoundError|No such file"),
    ("took too long", r"^timed out"),
)


def kind(reason: str) -> str:
    """A reason's kind; else the name of its exception; else "another reason"."""
    for name, pattern in KINDS:
        if re.search(pattern, reason):
            return name
    named = re.match(r"(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt|Warning))\b", reason)
    return named[1] if named else "another reason"


def read(xml: bytes, file: str) -> dict[str, Case]:
    """The tests of one file, by id, from pytest's junit XML (family xunit1).

    What it could not collect counts as the file itself, an error. Raises ValueError for what is no
    XML, as a killed process leaves it.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from None
    cases: dict[str, Case] = {}
    for element in root.iter("testcase"):
        name = _id(file, element.get("classname", ""), element.get("name", ""))
        found = _case(element)
        cases[name] = worse(cases[name], found) if name in cases else found
    return cases


def _id(file: str, classname: str, name: str) -> str:
    """pytest writes no class for what it did not collect, and the module before a test's class."""
    if not classname:
        return file
    module = file.removesuffix(".py").replace("/", ".")
    tail = next(
        (
            classname[len(start) :]
            for start in _tails(module)
            if classname == start or classname.startswith(f"{start}.")
        ),
        f".{classname}",
    )
    return "::".join([file, *filter(None, tail.split(".")), name])


def _tails(module: str) -> list[str]:
    """a.b.c, b.c, c: what pytest may call a module, by the folder that it counts from."""
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _case(element: ElementTree.Element) -> Case:
    for tag, state in (
        ("error", State.ERROR),
        ("failure", State.FAILED),
        ("skipped", State.SKIPPED),
    ):
        found = element.find(tag)
        if found is not None:
            return Case(state, _reason(found))
    return Case(State.PASSED)


def _reason(element: ElementTree.Element) -> str:
    """The exception's own line: the last that pytest marks with E, else the message's first.

    sglang's CustomTestCase raises one of its own behind a test's. A file that skips itself has its
    reason in the text, as `('FILE', LINE, 'Skipped: REASON')`.
    """
    itself = re.search(r"'Skipped: (.*)'\)$", element.text or "")
    if itself:
        return itself[1][:LONGEST]
    marked = re.findall(r"(?m)^E {2,}(\S.*)$", element.text or "")
    marked = [line for line in marked if RETRIED not in line] or marked
    named = [line for line in marked if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Exit)\b", line)]
    message = (element.get("message") or "").strip().splitlines()
    text = (named or marked or message or [""])[-1 if named or marked else 0]
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)[:LONGEST]


def worse(one: Case, other: Case) -> Case:
    """The less good of two results of one test."""
    both = (one, other)
    return next((case for state in WORST_FIRST for case in both if case.state is state), one)


LISTS = ("pristine_only", "patched_only", "flaky", "skipped", "failed")
ALONE = LISTS[:2]  # what may be chance, and is run again


@dataclass(frozen=True)
class Verdict:
    """Both trees' results, by id: how many tests passed on both, and the others.

    pristine_only: what became of it on the patched tree; patched_only: on the pristine tree;
    flaky: passed on one tree alone, but not when it was run again; skipped, failed: on both trees,
    with the pristine tree's result.
    """

    both: int = 0
    pristine_only: Cases = field(default_factory=dict)
    patched_only: Cases = field(default_factory=dict)
    flaky: Cases = field(default_factory=dict)
    skipped: Cases = field(default_factory=dict)
    failed: Cases = field(default_factory=dict)

    @property
    def doubtful(self) -> bool:
        return any(getattr(self, name) for name in ALONE)

    @property
    def tests(self) -> int:
        return self.both + sum(len(getattr(self, name)) for name in LISTS)


def compare(pristine: Cases, patched: Cases, file: str) -> Verdict:
    """One file's results on both trees.

    A test without a result on a tree did not run there; what became of the file as a whole says
    why.
    """
    ids = [name for name in {**pristine, **patched} if name != file]
    if not ids or (file in pristine and file in patched):
        ids.append(file)
    both = 0
    lists: dict[str, dict[str, Case]] = {name: {} for name in LISTS}
    for name in ids:
        before, after = (_of(name, cases, file) for cases in (pristine, patched))
        if before.passed and after.passed:
            both += 1
        elif before.passed:
            lists["pristine_only"][name] = after
        elif after.passed:
            lists["patched_only"][name] = before
        elif before.state is after.state is State.SKIPPED:
            lists["skipped"][name] = before
        else:
            lists["failed"][name] = before
    return Verdict(both, **lists)


def _of(name: str, cases: Cases, file: str) -> Case:
    whole = cases.get(file)
    if name in cases:
        return cases[name]
    return Case(State.NOT_RUN, str(whole) if whole else "it is not among the file's tests")


def settle(first: Verdict, again: Verdict) -> Verdict:
    """The first verdict, less those that the second run does not find again: they are flaky."""
    gone = dict(first.flaky)
    stays: list[dict[str, Case]] = []
    for name in ALONE:
        before, after = getattr(first, name), getattr(again, name)
        stays.append({test: case for test, case in after.items() if test in before})
        gone |= {test: case for test, case in before.items() if test not in after}
    pristine_only, patched_only = stays
    return replace(first, pristine_only=pristine_only, patched_only=patched_only, flaky=gone)


def joined(verdicts: Iterable[Verdict]) -> Verdict:
    """All files' verdicts in one."""
    every = list(verdicts)
    lists = {
        name: {test: case for one in every for test, case in getattr(one, name).items()}
        for name in LISTS
    }
    return Verdict(sum(one.both for one in every), **lists)
