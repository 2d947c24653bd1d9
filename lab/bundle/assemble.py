"""Write a bundle: of a patched release, or of another engine.

Packages are resolved as of a day for the host's own Python, less what the host brings, less what a
run from random weights never reaches (rules.toml), less kernels for other GPUs: about 45 MiB packed
instead of 9 GB installed. They are packed apart from the tree, which changes with every edit of the
queue, and from a torch that is carried (carried.py).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import carried, elf, packages, packing
from .host import Host
from .rules import RULES, Rules, Trimmed

HOSTSITE = Path(__file__).parent / "hostsite"
SCHEMA = 2  # of what is kept


@dataclass(frozen=True)
class Bundle:
    """A finished bundle."""

    path: Path
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What a bundle is to be. sm: the GPUs' compute capability, 90 for Hopper; part_size: in bytes,
    what one part may have; carry_torch: pack torch where the host has another; flash: pack
    FlashAttention 3 too."""

    sm: int
    part_size: int
    carry_torch: bool = False
    flash: bool = False


@dataclass(frozen=True)
class Contents:
    """What a bundle holds beside torch. name: of its folder in dist/bundle/; about: what the
    manifest says of it; locked: its packages, as hashed requirements; rules: of its kind; tree:
    lays in a scratch folder what else is packed. own: packages that may ask for CUDA libraries
    beside those made for torch; one_gpu: code for other GPUs is zeroed in its packages, as it is
    beside a carried torch."""

    name: str
    about: Mapping[str, Any]
    locked: str
    rules: Rules
    tree: Callable[[Path], Sequence[tuple[Path, str]]] = lambda scratch: ()
    own: tuple[str, ...] = ()
    one_gpu: bool = False


def pack(
    root: Path, contents: Contents, host: Host, torch: carried.Carried | None, wanted: Wanted
) -> Bundle:
    """Write dist/bundle/<name>/. Raises Refused where packages ask for CUDA libraries that a
    carried torch leaves out."""
    sm = wanted.sm if torch or contents.one_gpu else None
    site, facts = dependencies(contents, host, wanted.sm, sm)
    archives = {"site": site}
    if torch:
        carried.check(facts, torch)
        archives["torch"] = torch.archive
    manifest = {
        **contents.about,
        "host": {"name": host.name, "python": host.python, "torch": host.torch},
        "sm": wanted.sm,
        **facts,
        "carried": torch.facts if torch else None,
    }
    with tempfile.TemporaryDirectory(prefix="patchqueue-bundle-") as name:
        scratch = Path(name)
        archives["tree"] = scratch / "tree.tar.xz"
        lay_host_files(scratch / "hostsite", contents.rules.stand_ins)
        folders = [(scratch / "hostsite", "hostsite"), *contents.tree(scratch)]
        packing.archive(archives["tree"], folders)
        folder = root / "dist/bundle" / contents.name
        write(folder, archives, wanted.part_size, manifest)
    return Bundle(folder, manifest)


def dependencies(
    contents: Contents, host: Host, sm: int, only: int | None
) -> tuple[Path, dict[str, Any]]:
    """The packed packages (kept: the same ones are packed once), and what the manifest says of
    them. only: the kind of GPU whose code stays; None for all."""
    locked, rules = contents.locked, trim_rules(contents.rules, sm)
    patterns = [rule.patterns for rule in rules]
    made_of = [locked, patterns, host.python, host.platform, only, contents.own, SCHEMA]

    def make(scratch: Path) -> dict[str, Any]:
        site = scratch / "site"
        packages.Index(host).install(locked, site, f"{contents.name}'s packages")
        trimmed = [packing.trim(site, rule) for rule in rules]
        zeroed = asdict(elf.zero_all(site, only)) if only else None
        asks = carried.asks(site, (*contents.own, *carried.MADE_FOR_TORCH)) if only else []
        packing.archive(scratch / "site.tar.xz", [(site, "site")])
        names = re.findall(r"(?m)^(\S+==\S+)", locked)
        return {"packages": names, "trimmed": trimmed, "zeroed": zeroed, "asks": asks}

    said = f"packing the packages of {contents.name} for sm_{sm} (a few minutes, once)"
    kept, facts = packages.kept("sites", made_of, said, make)
    return kept / "site.tar.xz", facts


def trim_rules(rules: Rules, sm: int) -> tuple[Trimmed, ...]:
    """The rules by which packages are trimmed, with those of all bundles, and with sgl_kernel's
    kernels for other GPUs."""
    others = tuple(f"sgl_kernel/sm{other}" for other in (90, 100, 103, 120) if other != sm)
    return (*rules.trimmed, *RULES.trimmed, Trimmed(f"kernels for GPUs other than sm_{sm}", others))


def write(
    folder: Path, archives: Mapping[str, Path], part_size: int, manifest: dict[str, Any]
) -> None:
    """The archives' parts, and what a host needs to put them together, in a folder that is emptied.
    Notes the parts in `manifest`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest["parts"] = parts = []
    for name, archive in archives.items():
        parts += packing.split(archive, folder, f"{name}.tar.xz", part_size)
    listed = "".join(f"{part['sha256']}  {part['file']}\n" for part in parts)
    (folder / "parts.sha256").write_text(listed)
    shutil.copy(HOSTSITE / "unpack", folder / "unpack")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def lay_host_files(folder: Path, stand_ins: Sequence[str]) -> None:
    """Write what a host's Python runs before an engine. stand_ins: names of modules."""
    folder.mkdir()
    for file in HOSTSITE.glob("*.py"):
        shutil.copy(file, folder / file.name)
    plan = {"stand_ins": [*stand_ins]}
    (folder / "patchqueue_site.json").write_text(json.dumps(plan, indent=1) + "\n")
