"""torch and what it needs, packed for a host that has another torch than the release pins.

What is packed goes in front of the host's own packages: torch, what is built against it (PACKAGES),
and of CUDA's libraries those that the host lacks (`choose`), trimmed to one kind of GPU (elf.py).
The archive is kept by the hashes of its wheels: releases that pin one torch share it.
"""

from __future__ import annotations

import datetime
import enum
import importlib.metadata
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from patchqueue.environments import cuda_stubs, lock
from patchqueue.environments.lock import body, until
from patchqueue.outcome import Refused

from . import elf, packages, packing
from .host import Host
from .rules import RULES as ALL_RULES

SCHEMA = 2
RULES = ALL_RULES.torch
PACKAGES = ("torch", "triton")
# Made for one torch each, and packed with the release's other packages: releases of one torch
# differ in these, and share the archive of torch itself.
MADE_FOR_TORCH = ("torchvision", "torchaudio")
# What binds Python to one CUDA: the host's own is for the host's torch.
BOUND_TO_CUDA = ("cuda-bindings", "cuda-pathfinder", "cuda-python")
PLAN = "patchqueue_libraries.json"  # in the folder of packages: what `unpack` links
ARCHIVE = "torch.tar.xz"
INSTALLED = "torch and its CUDA libraries"
EFFORT = 3  # xz's: 6 takes three times as long and packs 5 % smaller
ASSEMBLER, LATER = "ptxas", "ptxas-blackwell"  # the latter is for capability 10.0 and later alone


class Origin(str, enum.Enum):
    """Where a carried torch gets a CUDA library from."""

    HOST = "the host's own"
    CARRIED = "carried"
    STAND_IN = "a stand-in"


class Library(Struct, frozen=True, array_like=True):
    """A CUDA library as a package brings it. path: below the folder of packages; package:
    "name==version"; offers: the functions that it has."""

    path: str
    package: str
    offers: frozenset[str]


class Chosen(NamedTuple):
    """Where one library comes from, and why."""

    origin: Origin
    reason: str


@dataclass(frozen=True)
class Carried:
    """A packed torch. facts: what the manifest says of it; holds: MADE_FOR_TORCH as the release
    requires them beside this torch, as "torchvision==0.24.1"."""

    archive: Path
    facts: dict[str, Any]
    holds: tuple[str, ...]

    @property
    def besides(self) -> tuple[str, ...]:
        """Packages of the host that are made for its own torch alone."""
        return (*MADE_FOR_TORCH, *(BOUND_TO_CUDA if self.facts["own_cuda"] else ()))


# Of one CUDA library: each function that is asked of it, with its version or None.
Asked = Mapping[str, str | None]


def choose(
    name: str, asked: Asked, own: Mapping[str, Library], pinned: Mapping[str, Library]
) -> Chosen:
    """Where a library comes from: the host's own where it has every function asked of it, at the
    place where torch looks. Else a stand-in where rules.toml names one, else it is carried. own:
    the host's libraries, of the same CUDA; pinned: those of the packages that torch requires.
    Raises Refused where none of them has it."""
    if name not in pinned:
        what = f"torch wants {name}, which none of the packages that it requires has"
        step = "name its package in lab/bundle/rules.toml"
        raise Refused.of("no-library", "bundle --carry-torch", what, step)
    lacks = "the host's torch brings none of that name for this CUDA"
    if name in own:
        missing = sorted(asked.keys() - own[name].offers)
        if not missing and own[name].path == pinned[name].path:
            other = own[name].package != pinned[name].package
            instead = f", in place of {pinned[name].package}" if other else ""
            return Chosen(Origin.HOST, f"{own[name].package} has all that is asked of it{instead}")
        lacks = f"{own[name].package} lacks {missing[0] if missing else 'its place'}"
        lacks += f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    for names, reason in RULES.stood_in_for.items():
        if cuda_stubs.stem(name).removeprefix("lib") in names.split():
            return Chosen(Origin.STAND_IN, reason)
    return Chosen(Origin.CARRIED, lacks)


def check(site: Mapping[str, Any], torch: Carried) -> None:
    """Raises Refused where a release's packages ask for CUDA libraries that a carried torch leaves
    out. site: the facts of its packages."""
    missing = sorted(set(site["asks"]) - set(torch.facts["libraries"]))
    if missing:
        what = f"packages made for torch want {', '.join(missing)}, which torch itself does not"
        step = "settle it as what torch asks for (lab/bundle/carried.py)"
        raise Refused.of("no-library", "bundle --carry-torch", what, step)


def asks(site: Path, names: Sequence[str]) -> list[str]:
    """The CUDA libraries that these packages, made for one torch, want, less those that they bring
    themselves."""
    files = [file for name in names for file in (site / name).rglob("*.so*")]
    own = {file.name for name in names for file in (site / f"{name}.libs").glob("*.so*")}
    return sorted(asked_of(file for file in files if file.is_file()).keys() - own)


def asked_of(files: Iterable[Path]) -> dict[str, Asked]:
    """CUDA library -> what these files ask of it. The driver's own library is every host's."""
    wants = [found for found in map(cuda_stubs.read_wants, files) if found]
    asked: dict[str, Asked] = {
        name: symbols
        for name, symbols in cuda_stubs.missing_libraries(wants, []).items()
        if cuda_stubs.stem(name) not in ("libcuda", "libnuma")
    }
    runtime = {name for want in wants for name in want.libraries if _is_runtime(name)}
    symbols = {one for want in wants for one in want.symbols}
    return asked | {
        name: {symbol: version for symbol, library, version in symbols if library == name}
        for name in runtime
    }


def _is_runtime(name: str) -> bool:
    return cuda_stubs.stem(name) == "libcudart"


def libraries(site: Path) -> dict[str, Library]:
    """The shared libraries of the nvidia packages installed in `site`, by file name."""
    return {
        Path(file).name: Library(
            str(file), f"{name}=={distribution.version}", elf.offers(site / file)
        )
        for distribution in importlib.metadata.distributions(path=[str(site)])
        if (name := distribution.metadata["Name"].replace("_", "-")).startswith("nvidia-")
        for file in distribution.files or ()
        if ".so" in Path(file).name and (site / file).is_file()
    }


def pack(
    wanted: str, as_of: datetime.date, host: Host, sm: int, excluded: Iterable[str]
) -> Carried | None:
    """The packed torch that `wanted` ("sglang==0.5.23") requires as of a day; None where the host
    has that torch. excluded: packages that the resolution leaves out. Raises Refused with uv's
    reason."""
    words = ["--exclude-newer", until(as_of), "--prerelease=allow"]
    found = packages.Index(host).resolve([wanted], words, excluded)["packages"]
    locked = _of(found, {*PACKAGES, *lock.cuda_libraries(RULES.libraries)})
    version = lock.version_of(locked, "torch")
    if not version:
        what, step = f"{wanted} requires no torch", "pack it without --carry-torch"
        raise Refused.of("no-torch", "bundle --carry-torch", what, step)
    if version == host.torch:
        return None
    own = _host_libraries(host)
    made_of = [locked, sorted(own), msgspec.to_builtins(RULES), sm, EFFORT, SCHEMA]
    made_of += [host.python, host.platform]
    said = f"packing torch {version} for sm_{sm} (some minutes and GBs, once)"
    folder, facts = packages.kept(
        "torch", made_of, said, lambda scratch: _made(scratch, locked, host, own, sm)
    )
    held = (one for one in found if one["name"] in MADE_FOR_TORCH)
    holds = tuple(f"{one['name']}=={one['version']}" for one in held)
    return Carried(folder / ARCHIVE, facts, holds)


def _of(found: Iterable[dict[str, Any]], names: set[str]) -> str:
    """Those of `names`, as hashed requirements."""
    return body({"packages": [one for one in found if one["name"] in names]})


def _host_libraries(host: Host) -> dict[str, Library]:
    """The CUDA libraries that the host's own torch requires, by file name (kept)."""
    names = set(lock.cuda_libraries(RULES.libraries))
    index = packages.Index(host)
    locked = _of(index.resolve([f"torch=={host.torch}"])["packages"], names)

    def make(scratch: Path) -> dict[str, Any]:
        index.install(locked, scratch / "site", INSTALLED)
        trim(scratch / "site")
        return dict(msgspec.to_builtins(libraries(scratch / "site")))

    said = f"reading the CUDA libraries of torch {host.torch} (2 GB from the index, once)"
    patterns = [rule.patterns for rule in RULES.trimmed]
    _, facts = packages.kept("libraries", [locked, patterns, SCHEMA], said, make)
    return msgspec.convert(facts, dict[str, Library])


def trim(site: Path) -> list[dict[str, Any]]:
    return [packing.trim(site, rule) for rule in RULES.trimmed]


def _made(
    scratch: Path, locked: str, host: Host, own: Mapping[str, Library], sm: int
) -> dict[str, Any]:
    """Install, choose, trim and pack; what the manifest says of it."""
    site = scratch / "site"
    packages.Index(host).install(locked, site, INSTALLED)
    facts = lay(site, own, sm)
    plan = {"torch": host.torch, "libraries": facts["linked"]}
    (site / PLAN).write_text(json.dumps(plan, indent=1) + "\n")
    packing.archive(scratch / ARCHIVE, [(site, "site")], EFFORT)
    return {"torch": lock.version_of(locked, "torch"), "host_torch": host.torch, **facts}


def lay(site: Path, own: Mapping[str, Library], sm: int) -> dict[str, Any]:
    """Make of installed packages what a host with the libraries `own` lacks, for GPUs of compute
    capability `sm`; what the manifest says of it. own_cuda: whether torch is of another CUDA than
    the host's; linked: the host's libraries that stand beside what is carried, none with another
    CUDA."""
    trimmed = trim(site)
    _one_assembler(site, sm)
    pinned = libraries(site)
    own_cuda = not any(_is_runtime(name) and name in own for name in pinned)
    own = {} if own_cuda else own
    chosen, asked = settle(site, own, pinned)
    carried = {pinned[name].package for name, one in chosen.items() if one.origin is Origin.CARRIED}
    for one in (one for one in pinned.values() if one.package not in carried):
        (site / one.path).unlink()
    _forget(site, carried)
    for name, found in chosen.items():
        if found.origin is Origin.STAND_IN:
            (site / pinned[name].path).write_bytes(cuda_stubs.shared_library(name, asked[name]))
    return {
        "own_cuda": own_cuda,
        "packages": _names(site, carried),
        "libraries": {
            name: {"from": one.origin.value, "reason": one.reason}
            for name, one in sorted(chosen.items())
        },
        "linked": sorted(one.path for one in own.values() if not (site / one.path).exists()),
        "trimmed": trimmed,
        "zeroed": asdict(elf.zero_all(site, sm)),
    }


def settle(
    site: Path, own: Mapping[str, Library], pinned: Mapping[str, Library]
) -> tuple[dict[str, Chosen], dict[str, Asked]]:
    """What becomes of every library that PACKAGES ask for, and what is asked of it. A carried one
    asks for more."""
    files = [file for name in PACKAGES for file in (site / name).rglob("*.so*") if file.is_file()]
    chosen: dict[str, Chosen] = {}
    while True:
        asked = asked_of(files)
        now = {name: choose(name, asked[name], own, pinned) for name in asked}
        if now == chosen:
            return chosen, asked
        chosen = now
        carried = {pinned[name].package for name in now if now[name].origin is Origin.CARRIED}
        more = [site / one.path for one in pinned.values() if one.package in carried]
        files += [file for file in more if file not in files]


def _forget(site: Path, carried: set[str]) -> None:
    """Remove what says that CUDA's packages are installed, but for these."""
    parts = (package.partition("==") for package in carried)
    folders = {f"{name.replace('-', '_')}-{version}.dist-info" for name, _, version in parts}
    for folder in site.glob("nvidia_*.dist-info"):
        if folder.name not in folders:
            shutil.rmtree(folder)


def _names(site: Path, carried: set[str]) -> list[str]:
    """Everything that is packed, as "name==version"."""
    found = importlib.metadata.distributions(path=[str(site)])
    names = {f"{one.metadata['Name']}=={one.version}" for one in found}
    return sorted({name for name in names if name.partition("==")[0] in PACKAGES} | carried)


def _one_assembler(site: Path, sm: int) -> None:
    """triton has a second assembler of 46 MiB for later GPUs: the first goes by both names."""
    later = site / "triton/backends/nvidia/bin" / LATER
    if sm < 100 and later.is_file():
        later.unlink()  # it is a hard link into uv's cache
        later.write_text(f'#!/bin/sh\nexec "$(dirname "$0")/{ASSEMBLER}" "$@"\n')
        later.chmod(0o755)
