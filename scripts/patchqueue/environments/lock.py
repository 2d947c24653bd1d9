"""Make upstream/locks/<version>.txt: everything that one release's CPU tests run with, resolved as
of one day.

sglang leaves most of its dependencies unbounded, so only the day of the release says which versions
it was made for.
"""

from __future__ import annotations

import datetime
import re
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from packaging.specifiers import SpecifierSet

from ..files import atomic, run
from ..outcome import Refused, to_type

PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_34"  # what sglang's own wheels ask for from 0.5.11 on
TEST_TOOLS = ("pytest", "hypothesis", "packaging", "numpy")
# Imported without being required: sglang's dill came with datasets, torch.compile's setuptools with
# packages left out.
UNDECLARED = ("dill", "setuptools")
COMPILE = ("pip", "compile", "--no-build", "--format", "pylock.toml", "--no-header")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LeftOut:
    """Packages that a lock does not name although the release requires them, and why that is right
    for CPU tests.

    What only these packages require goes with them. packages: their names; releases: the ones that
    do without them (PEP 440; empty: all).
    """

    reason: str
    packages: str
    releases: str = ""

    @property
    def names(self) -> list[str]:
        return self.packages.split()


def cuda_libraries(parts: str) -> list[str]:
    """nvidia's packages of these parts of CUDA, for whichever version of it."""
    return [f"nvidia-{part}{suffix}" for part in parts.split() for suffix in ("", "-cu12", "-cu13")]


CUDA = (
    "cublas cuda-cupti cuda-nvrtc cudnn cufft cufile curand cusolver cusparse cusparselt nccl"
    " nvjitlink nvshmem nvtx"
)


# A package belongs here when it is of no use without a GPU, a
# network or media files, and every module that the tests import still imports without it.
LEFT_OUT = (
    LeftOut(
        "CUDA libraries, 2.5 GB: nothing calls them without a GPU; cuda_stubs.py gives the loader"
        " what it asks for",
        " ".join(cuda_libraries(CUDA)),
    ),
    LeftOut(
        "kernels built ahead for GPUs, and compilers for GPU kernels",
        "flashinfer-cubin nvidia-cudnn-frontend nvidia-mathdx tilelang flash-attn-4 quack-kernels"
        " sgl-deep-gemm sgl-deep-ep sgl-flash-mla tokenspeed-mla tokenspeed-triton"
        " torch-c-dlpack-ext cuda-tile",
    ),
    LeftOut(
        "a compiler for GPU kernels; the linear attention of 0.5.8 alone imports it unasked",
        "nvidia-cutlass-dsl",
        "!=0.5.8.*",
    ),
    LeftOut(
        "reading audio, images and video",
        "av decord2 opencv-python-headless soundfile timm torchaudio torchcodec",
    ),
    LeftOut(
        "fetching models and data sets, other front ends, transfer between hosts, profilers",
        "anthropic blobfile datasets grpcio grpcio-health-checking grpcio-reflection hf-transfer"
        " hf-xet litellm modelscope mooncake-transfer-engine py-spy smg-grpc-proto"
        " smg-grpc-servicer",
    ),
)


def requirements(version: str) -> list[str]:
    """What a lock is resolved from."""
    return [f"sglang=={version}", *UNDECLARED, *TEST_TOOLS]


def left_out(version: str) -> list[LeftOut]:
    """The rules that hold for a release."""
    return [rule for rule in LEFT_OUT if SpecifierSet(rule.releases).contains(version, True)]


def header(version: str, as_of: datetime.date) -> str:
    """The comment at the top of a lock: what it is for, and how to remake it."""
    lines = (
        f"sglang {version} and what its CPU tests need: Python {PYTHON}, {PLATFORM}, resolved as of"
        f" {as_of.isoformat()}.",
        f"Made by {to_type('pin', version, '--lock')}; not to be edited. What is left out, and why:"
        " scripts/patchqueue/environments/lock.py",
        f"Asked for: {' '.join(requirements(version))}",
    )
    return "".join(f"# {line}\n" for line in lines)


def until(as_of: datetime.date) -> str:
    """uv's --exclude-newer for everything published up to the end of `as_of` (UTC)."""
    return f"{as_of + datetime.timedelta(days=1)}T00:00:00Z"


def resolve(wanted: Iterable[str], words: Iterable[str], excluded: Iterable[str]) -> dict[str, Any]:
    """uv's pylock.toml of these requirements, without the packages that are excluded.

    words: more for uv. Raises run.Failed where there is no resolution.
    """
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
    """The lock's entries from uv's pylock.toml, which names for each package just the wheels that
    fit the platform.

    Those wheels' hashes alone make a lock a tenth of the size that all files' hashes would.
    Raises ValueError for a package that does not come from the index as a wheel.
    """
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
    """Resolve sglang `version` as the package index stood at the end of `as_of` and write the lock
    `out`.

    Writes `out` whole or not at all. Raises Refused with uv's own words when there is no
    resolution.
    """
    words = ["--prerelease=allow", "--exclude-newer", until(as_of)]
    words += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    excluded = [name for rule in left_out(version) for name in rule.names]
    try:
        pylock = resolve(requirements(version), words, excluded)
        text = header(version, as_of) + body(pylock)
    except run.Failed as failure:
        what = f"uv found no resolution of sglang=={version} as of {as_of}:"
        what = f"{what}\n{textwrap.indent(failure.said, '    ')}"
        step = "check resolve_as_of in upstream/pins.toml: it lies a few days after the release"
        raise Refused.of("no-lock", f"v{version}", what, step) from None
    except ValueError as error:
        what = f"sglang=={version} as of {as_of}: {error}"
        step = "if CPU tests do without that package, name it in LEFT_OUT with the reason"
        raise Refused.of("no-lock", f"v{version}", what, step) from None
    atomic.write(out, text.encode())
