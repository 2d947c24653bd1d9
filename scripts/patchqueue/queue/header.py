"""A patch's header: DEP-3 style fields, with their rules as one table, which `problems` checks
with and CONTRIBUTING.md shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email import message_from_string

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from ..outcome import Problem, counted

VERSION = r"\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?"
TREE_PATH = r"(?:python/sglang|test)/[^\s:]+"


@dataclass(frozen=True)
class Rule:
    """One header field. pattern must match the whole value (continuation lines joined by \\n);
    length: of the value, in characters."""

    field: str
    pattern: str
    meaning: str
    required: bool = True
    repeats: bool = False
    length: range = range(10_000)


FIXES = "fixes"
SPEED = "speed"
PROFILES = (FIXES, "rl", SPEED)
PROFILE = "|".join(PROFILES)
RULES = (
    Rule(
        "Subject",
        r"[A-Z][^\n]*",
        "what the patch does, imperative, 8 to 72 characters, a capital first; a commit's subject"
        " later",
        length=range(8, 73),
    ),
    Rule(
        "Description",
        r"(?s).*",
        "why: what a user saw without it; continuation lines begin with a space, ` .` is an empty"
        " line",
        length=range(20, 10_000),
    ),
    Rule(
        "Origin",
        r"own|upstream, sglang#\d+(?:, sglang#\d+)*",
        "`own`, or `upstream, sglang#N` for the pull request whose feature it brings",
    ),
    Rule(
        "Upstream-Status",
        rf"Merged {VERSION}(?:, sglang#\d+)*|Pending|Submitted #\d+|Inappropriate: .+",
        "`Merged X.Y.Z, sglang#N` (first release that has it), `Pending`, `Submitted #n`, or"
        " `Inappropriate: reason`",
    ),
    Rule(
        "Profile",
        rf"(?:{PROFILE})(?:, (?:{PROFILE}))*",
        f"the sets of `--only` that the patch is in, of {', '.join(PROFILES)} (default: {FIXES})",
        required=False,
    ),
    Rule(
        "Probe",
        rf"{TREE_PATH} :: \S[^\n]*",
        "how to see that a tree has the change: `PATH :: TEXT` (white space folded) or `PATH ::"
        " /REGEX/`; any one that matches is enough",
        repeats=True,
    ),
    Rule(
        "Gap",
        r"[^:]+: .{10,}(?s:.*)",
        "`SPECIFIER: reason`: releases outside the guard that lack the change, and why it is not"
        " offered there; `SPECIFIER: not needed: reason` where they do without it",
        required=False,
        repeats=True,
    ),
    Rule(
        "Overlay",
        r"none|[^\s,]+(?:,\s+[^\s,]+)*",
        "overlay files that come with it besides those that its lines import, as paths below"
        " overlay/ (or folders, ending in /; default: none)",
        required=False,
    ),
    Rule(
        "Needs",
        r"[^\s,@]+\.patch(?:,\s+[^\s,@]+\.patch)*",
        "the patches that a pull request of this one has to stand on",
        required=False,
    ),
    Rule("Test", r"tests/[^\s,]+\.py(?:,\s+tests/[^\s,]+\.py)*", "the tests that fail without it"),
)
VARIANT_RULES = (
    Rule(
        "Variant-Of",
        r"[^\s@]+\.patch",
        "the patch whose header this one shares: same stem, without the @",
    ),
    Rule(
        "Description",
        r"(?s).*",
        "how the variant differs, where it is more than the line numbers",
        required=False,
        length=range(20, 10_000),
    ),
)


Probe = tuple[str, re.Pattern[str]]  # a file's path in the tree, and what to find in it
NOT_NEEDED = "not needed: "  # how the reason begins where the releases do without the change


@dataclass(frozen=True)
class Gap:
    """Releases that lack a change and do not get the patch, with the reason."""

    releases: SpecifierSet
    reason: str


@dataclass(frozen=True)
class Header:
    """A parsed header: every field's values in order, as written (continuation lines joined by
    \\n)."""

    fields: tuple[tuple[str, str], ...]

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(value for field, value in self.fields if field == name)

    def get(self, name: str) -> str:
        """The field's first value, or "" where it has none."""
        return next(iter(self.all(name)), "")

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Raises re.error where `problems` would have named one."""
        return tuple(_probe(value) for value in self.all("Probe"))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Raises InvalidSpecifier where `problems` would have named one."""
        split = (value.partition(":") for value in self.all("Gap"))
        return tuple(
            Gap(SpecifierSet(left.strip()), " ".join(right.split())) for left, _, right in split
        )

    def gap(self, version: Version) -> Gap | None:
        """The first gap that a release is in."""
        fitting = (gap for gap in self.gaps if gap.releases.contains(version, prereleases=True))
        return next(fitting, None)

    @property
    def merged(self) -> str:
        """The first release of upstream that has the change; "" where none is named."""
        status = re.match(rf"Merged ({VERSION})", self.get("Upstream-Status"))
        return status[1] if status else ""

    @property
    def profiles(self) -> tuple[str, ...]:
        return _names(self.get("Profile")) or (FIXES,)

    @property
    def overlay(self) -> tuple[str, ...]:
        return _names(self.get("Overlay"))

    @property
    def needs(self) -> tuple[str, ...]:
        return _names(self.get("Needs"))

    @property
    def tests(self) -> tuple[str, ...]:
        return _names(self.get("Test"))


def parse(text: str) -> tuple[Header, list[str]]:
    """The header in `text`, and what is unreadable in it."""
    message = message_from_string(text)
    complaints = [type(defect).__name__ for defect in message.defects]
    if message.get_unixfrom():
        complaints.append(f"a mail's first line: {message.get_unixfrom()!r}")
    body = message.get_payload()
    if isinstance(body, str) and body.strip():
        complaints.append(f"text that belongs to no field: {body.strip().splitlines()[0]!r}")
    return Header(tuple((name, _unfold(value)) for name, value in message.items())), complaints


def problems(where: str, header: Header) -> list[Problem]:
    """Every way in which the header breaks the rules."""
    kind, rules = ("variant", VARIANT_RULES) if header.get("Variant-Of") else ("patch", RULES)
    complaints = [each for rule in rules for each in _broken(rule, where, header.all(rule.field))]
    allowed = {rule.field for rule in rules}
    for name, _ in header.fields:
        if name not in allowed:
            complaints.append(Problem("unknown-field", where, f"{name} is no field of a {kind}"))
    try:
        _ = complaints or (header.gaps, header.probes)
    except InvalidSpecifier as error:
        complaints.append(Problem("bad-field", where, f"Gap: {error}"))
    except re.error as error:
        what = f"Probe: {error.pattern!r} is no regular expression: {error}"
        complaints.append(Problem("bad-field", where, what))
    return complaints


def _broken(rule: Rule, where: str, values: Sequence[str]) -> Iterator[Problem]:
    """How the values of one field break its rule."""
    if rule.required and not values:
        yield Problem("missing-field", where, f"has no {rule.field}: {rule.meaning}")
    if len(values) > 1 and not rule.repeats:
        yield Problem("repeated-field", where, f"has {len(values)} {rule.field} fields")
    for value in values:
        if not re.fullmatch(rule.pattern, value):
            what = f"{rule.field} is {value!r}; it is {rule.meaning}"
            yield Problem("bad-field", where, what)
        elif len(value) not in rule.length:
            least, most = rule.length.start, rule.length.stop - 1
            bound = f"needs {least} or more" if len(value) < least else f"may have {most}"
            what = f"{rule.field} has {counted(len(value), 'character')}, and {bound}"
            yield Problem("bad-field", where, f"{what}: {rule.meaning}")


def _unfold(value: str) -> str:
    first, *rest = value.strip().splitlines() or [""]
    lines = (line.strip() for line in rest)
    return "\n".join([first, *("" if line == "." else line for line in lines)])


def _names(value: str) -> tuple[str, ...]:
    return () if value in ("none", "") else tuple(name.strip() for name in value.split(","))


def _probe(value: str) -> Probe:
    path, _, text = value.partition(" :: ")
    text = text.strip()
    is_regex = len(text) > 2 and text.startswith("/") and text.endswith("/")
    pattern = text[1:-1] if is_regex else r"\s+".join(map(re.escape, text.split()))
    return path.strip(), re.compile(pattern, re.DOTALL | re.MULTILINE)
