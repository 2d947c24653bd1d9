"""Make upstream/locks/<version>.txt: everything that one release's CPU tests run with, resolved as
of one day, since sglang leaves most of its dependencies unbounded."""

from __future__ import annotations

import datetime
import re
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..files import atomic, record, run
from ..outcome import Refused, to_type

PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_34"  # what sglang's own wheels ask for from 0.5.11 on
TEST_TOOLS = ("pytest", "hypothesis", "packaging", "numpy")
# Imported without being required: sglang's dill came with datasets, torch.compile's setuptools with
# packages left out.
UNDECLARED = ("dill", "setuptools")
RULES = Path(__file__).with_name("left_out.toml")
COMPILE = ("pip", "compile", "--no-build", "--format", "pylock.toml", "--no-header")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LeftOut(Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that are not installed although a release requires them, by name, or as parts of
    CUDA. modules: of them, those that need a stand-in; releases: those that do without them."""

    reason: str
    packages: str = ""
    cuda: str = ""
    modules: str = ""
    releases: SpecifierSet = SpecifierSet()

    @property
    def names(self) -> list[str]:
        return self.packages.split() + cuda_libraries(self.cuda)

    def is_for(self, version: Version) -> bool:
        return self.releases.contains(version, prereleases=True)


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """RULES."""

    left_out: tuple[LeftOut, ...]


def cuda_libraries(parts: str) -> list[str]:
    """nvidia's packages of these parts of CUDA, for whichever version of it."""
    return [f"nvidia-{part}{suffix}" for part in parts.split() for suffix in ("", "-cu12", "-cu13")]


def left_out(version: str) -> list[str]:
    """The packages that a release's lock does not name."""
    rules = record.toml(RULES.read_bytes(), Rules, RULES.name, "bad-rules").left_out
    return [name for rule in rules if rule.is_for(Version(version)) for name in rule.names]


def requirements(version: str) -> list[str]:
    """What a lock is resolved from."""
    return [f"sglang=={version}", *UNDECLARED, *TEST_TOOLS]


def header(version: str, as_of: datetime.date) -> str:
    """The comment at the top of a lock: what it is for, and how to remake it."""
    lines = (
        f"sglang {version} and what its CPU tests need: Python {PYTHON}, {PLATFORM}, resolved as of"
        f" {as_of.isoformat()}.",
        f"Made by {to_type('pin', version, '--lock')}; not to be edited. What is left out, and why:"
        " scripts/patchqueue/environments/left_out.toml",
        f"Asked for: {' '.join(requirements(version))}",
    )
    return "".join(f"# {line}\n" for line in lines)


def until(as_of: datetime.date) -> str:
    """uv's --exclude-newer for everything published up to the end of `as_of` (UTC)."""
    return f"{as_of + datetime.timedelta(days=1)}T00:00:00Z"


def resolve(wanted: Iterable[str], words: Iterable[str], excluded: Iterable[str]) -> dict[str, Any]:
    """uv's pylock.toml of these requirements, without the excluded packages. Raises run.Failed."""
    with tempfile.TemporaryDirectory(prefix="patchqueue-lock-") as scratch:
        names, excludes, made = (
            Path(scratch) / name for name in ("requirements.in", "excludes.txt", "pylock.toml")
        )
        names.write_text("".join(f"{line}\n" for line in wanted))
        excludes.write_text("".join(f"{name}\n" for name in excluded))
        files = ("--excludes", str(excludes), "--output-file", str(made), str(names))
        run.uv(*COMPILE, *words, *files, folder=Path(scratch))
        return dict(msgspec.toml.decode(made.read_text()))


def body(pylock: Mapping[str, Any]) -> str:
    """The lock's entries from uv's pylock.toml, with the hashes of just the wheels that fit the
    platform. Raises ValueError for a package that does not come from the index as a wheel."""
    lines = []
    for package in pylock["packages"]:
        name, version = package["name"], package.get("version")
        hashes = sorted(
            {wheel.get("hashes", {}).get("sha256", "") for wheel in package.get("wheels", [])}
        )
        if not version or not hashes or not all(_SHA256.fullmatch(each) for each in hashes):
            raise ValueError(
                f"{name} {version or '(no version)'} has no hashed wheel for this platform on the"
                " index"
            )
        lines.append(
            " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{each}" for each in hashes)])
            + "\n"
        )
    return "".join(lines)


def version_of(locked: str, name: str) -> str:
    """The version of a package among a lock's entries; empty where they do not name it."""
    found = re.search(rf"(?m)^{re.escape(name)}==([^\s;]+)", locked)
    return found[1] if found else ""


def compile_lock(version: str, as_of: datetime.date, out: Path) -> None:
    """Resolve sglang `version` as of a day, and write the lock `out`. Raises Refused."""
    words = ["--prerelease=allow", "--exclude-newer", until(as_of)]
    words += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    try:
        pylock = resolve(requirements(version), words, left_out(version))
        text = header(version, as_of) + body(pylock)
    except run.Failed as failure:
        what = f"uv found no resolution of sglang=={version} as of {as_of}:"
        what = f"{what}\n{textwrap.indent(failure.said, '    ')}"
        step = "check resolve_as_of in upstream/pins.toml: it lies a few days after the release"
        raise Refused.of("no-lock", f"v{version}", what, step) from None
    except ValueError as error:
        what = f"sglang=={version} as of {as_of}: {error}"
        step = f"if CPU tests do without that package, name it in {RULES.name} with the reason"
        raise Refused.of("no-lock", f"v{version}", what, step) from None
    atomic.write(out, text.encode())
