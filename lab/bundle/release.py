"""Pack what a GPU host needs that reaches no package index: the patched wheel, its dependencies,
and SCRIPTS.

untouched/ beside the patched tree holds the release's own content of what the queue changed.

The dependencies are resolved as of the pin's day for the host's own Python, less what the host
brings, less what a run from random weights never reaches, less kernels for other GPUs: about 45 MiB
packed instead of 9 GB installed. The tree is packed apart from them, because it changes with every
edit of the queue and they do not. Where the release pins another torch than the host has, torch is
packed too (carried.py).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from patchqueue import RELEASE
from patchqueue.environments import lock
from patchqueue.environments.lock import body, until
from patchqueue.environments.testing import pinned_torch
from patchqueue.outcome import Refused
from patchqueue.upstream.pins import Pin
from patchqueue.wheels import Built, Target, build

from . import carried, elf, packages, packing, untouched
from .host import Host
from .host import load as load_host

HOSTSITE = Path(__file__).parent / "hostsite"
SCRIPTS = ("tests/gpu", "tests/models")  # what runs on the host, and the configs of its models
SCHEMA = 1


@dataclass(frozen=True)
class LeftOut:
    """Packages that are not packed although the release requires them. modules: what sglang imports
    of them, to be stood in for. releases: which releases do without (PEP 440); all where empty."""

    reason: str
    packages: str
    modules: str = ""
    releases: str = ""


LEFT_OUT = (
    LeftOut(
        "structured output: the runs ask for none",
        "xgrammar llguidance outlines outlines-core interegular openai-harmony",
        "xgrammar llguidance outlines interegular openai_harmony",
    ),
    LeftOut(
        "fetching models and data sets: the runs make their models",
        "modelscope datasets hf-xet hf-transfer blobfile pycryptodomex lxml multiprocess"
        " pycountry diskcache zstandard",
        "modelscope datasets blobfile pycountry",
    ),
    LeftOut(
        "audio, images and video: the models take text",
        "decord2 torchcodec timm soundfile av opencv-python-headless",
        "decord",
    ),
    LeftOut(
        "other front ends, profilers, transfer between hosts",
        "anthropic mistral-common ipython jedi parso prompt-toolkit pygments matplotlib-inline"
        " smg-grpc-servicer smg-grpc-proto grpcio grpcio-health-checking grpcio-reflection"
        " protobuf py-spy xxhash build litellm mooncake-transfer-engine",
        "anthropic IPython smg_grpc_servicer smg_grpc_proto grpc",
    ),
    LeftOut(
        "kernels for models and GPUs that the runs do not use, and their compilers",
        "flashinfer-cubin tilelang quack-kernels easydict cuda-tile sgl-deep-ep sgl-flash-mla"
        " torch-c-dlpack-ext z3-solver ml-dtypes tokenspeed-mla tokenspeed-triton nvidia-mathdx"
        " nvidia-cudnn-frontend flash-attn-4",
        "tilelang quack easydict sgl_kernel.flash_ops",
    ),
    LeftOut(
        "the compiler of CuTe kernels: Llama's MLPs ask for it from 0.5.22 on, sparse attention"
        " on 0.5.15, and gated delta nets and Mamba2 on 0.5.8",
        "nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-cu13",
        releases="<0.5.22,!=0.5.8.*,!=0.5.15.*",
    ),
)

CUDA = (
    "cublas cuda-cccl cuda-cupti cuda-nvcc cuda-nvrtc cuda-runtime cudnn cufft cufile curand"
    " cusolver cusparse cusparselt nccl nvjitlink nvshmem nvtx nvvm cuda-crt"
)
FLASH = packing.Trimmed(
    "FlashAttention 3 (1 GB): the runs use flashinfer's attention and FlashMLA's",
    ("sgl_kernel/flash_ops*",),
)
FLASH_MODULE = "sgl_kernel.flash_ops"
TRIMMED = (
    packing.Trimmed("InfLLM's kernels: no run uses them", ("sgl_kernel/infllm_ops*",)),
    packing.Trimmed(
        "CuTe's compiler for CUDA 12 (230 MB): the host has CUDA 13",
        (
            "nvidia_cutlass_dsl/cu12",
            "nvidia_cutlass_dsl/dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu12.*",
        ),
    ),
    packing.Trimmed("kernels that only runs on several nodes load", ("*_mscclpp*",)),
    packing.Trimmed(
        "programs, headers and byte code: nothing starts or compiles them",
        ("bin", "lib", "lib64", "include", "share", "**/__pycache__"),
    ),
)


@dataclass(frozen=True)
class Bundle:
    """A finished bundle."""

    path: Path
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What a bundle is to be. sm: the GPUs' compute capability, 90 for Hopper; part_size: in bytes,
    what one part may have; carry_torch: pack the release's torch where the host has another; flash:
    pack FlashAttention 3 too."""

    sm: int
    part_size: int
    carry_torch: bool = False
    flash: bool = False


def pack(root: Path, pin: Pin, description: Path, wanted: Wanted) -> Bundle:
    """Write dist/bundle/<tag>/ for the host described. Raises Refused with uv's or apply's
    reason."""
    host = load_host(description)
    if not shutil.which("xz"):
        raise Refused.of("no-xz", "bundle", "xz is not installed", "install xz-utils")
    pinned = pinned_torch(root, pin)
    if pinned not in ("", host.torch) and not wanted.carry_torch:
        what = f"pins torch {pinned}, and {host.name} has {host.torch}"
        raise Refused.of("other-torch", pin.tag, what, "pack it too: --carry-torch")
    target = Target(host.python, host.platform.split("-")[0])
    built = build(root, pin, target, None, root / "dist")
    torch = torch_of(pin, host, wanted.sm) if wanted.carry_torch else None
    if torch:
        host = host.less(torch.besides)
    site, facts = dependencies(pin, host, wanted.sm, torch=torch, flash=wanted.flash)
    with tempfile.TemporaryDirectory(prefix="patchqueue-bundle-") as scratch:
        tree = Path(scratch) / "tree.tar.xz"
        _pack_tree(root, built, Path(scratch), tree, wanted.flash)
        folder, manifest = root / "dist/bundle" / pin.tag, _manifest(built, host, wanted.sm) | facts
        return finish(folder, manifest, {"site": site, "tree": tree}, torch, wanted.part_size)


def torch_of(pin: Pin, host: Host, sm: int) -> carried.Carried | None:
    """The packed torch of a release; None where the host has that torch. Raises Refused."""
    wanted = f"sglang=={pin.version}"
    return carried.pack(wanted, pin.resolve_as_of, host, sm, _never_reached(pin))


def finish(
    folder: Path,
    manifest: dict[str, Any],
    archives: dict[str, Path],
    torch: carried.Carried | None,
    part_size: int,
) -> Bundle:
    """Write a bundle into the folder, which is emptied, with the archive of a carried torch. Raises
    Refused where packages ask for CUDA libraries that the torch leaves out."""
    if torch:
        carried.check(manifest, torch)
        archives = archives | {"torch": torch.archive}
    manifest["carried"] = torch.facts if torch else None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder, archives, part_size, manifest)
    return Bundle(folder, manifest)


def write(
    folder: Path, archives: dict[str, Path], part_size: int, manifest: dict[str, Any]
) -> None:
    """The archives' parts, and what a host needs to put them together. Notes the parts in
    `manifest`."""
    manifest["parts"] = parts = [
        part
        for name, archive in archives.items()
        for part in packing.split(archive, folder, f"{name}.tar.xz", part_size)
    ]
    (folder / "parts.sha256").write_text(
        "".join(f"{part['sha256']}  {part['file']}\n" for part in parts)
    )
    shutil.copy(HOSTSITE / "unpack", folder / "unpack")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _left_out(pin: Pin) -> list[LeftOut]:
    """The rules of LEFT_OUT that hold for a release."""
    return [
        rule
        for rule in LEFT_OUT
        if SpecifierSet(rule.releases).contains(pin.version, prereleases=True)
    ]


def _never_reached(pin: Pin) -> list[str]:
    """The packages that a release's bundle does not hold."""
    return [name for rule in _left_out(pin) for name in rule.packages.split()]


def stand_ins(pin: Pin, flash: bool) -> list[str]:
    """The modules that are stood in for on the host."""
    modules = {module for rule in _left_out(pin) for module in rule.modules.split()}
    return sorted(modules - {FLASH_MODULE} if flash else modules)


def _pack_tree(root: Path, built: Built, scratch: Path, out: Path, flash: bool) -> None:
    """The patched wheel's files, what the host needs beside them, and what runs on a GPU."""
    with zipfile.ZipFile(built.path) as wheel:
        wheel.extractall(scratch / "tree")
    lay_host_files(scratch / "hostsite", {"stand_ins": stand_ins(built.pin, flash)})
    untouched.lay(built, scratch / untouched.FOLDER)
    folders = [(scratch / name, name) for name in ("tree", "hostsite", untouched.FOLDER)]
    packing.archive(out, [*folders, *((root / name, name) for name in SCRIPTS)])


def _manifest(built: Built, host: Host, sm: int) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "version": str(built.pin.version),
        "tag": built.pin.tag,
        "local_version": built.version,
        "queue_release": RELEASE,
        "tree": built.record["tree"]["after"],
        "wheel": {"file": built.path.name, "sha256": built.sha256},
        "host": {"name": host.name, "python": host.python, "torch": host.torch},
        "sm": sm,
    }


def dependencies(
    pin: Pin, host: Host, sm: int, *, torch: carried.Carried | None, flash: bool
) -> tuple[Path, dict[str, Any]]:
    """The packed dependencies of a release (kept: the same answer is made once), and what the
    manifest says about them. Beside a carried torch, or with FlashAttention 3, what no GPU of `sm`
    needs is zeroed in them."""
    one_gpu = [sm] if torch or flash else []
    locked = resolve(pin, host, torch.holds if torch else ())
    rules = trim_rules(sm, flash)
    made_of = [locked, [rule.patterns for rule in rules], host.python, host.platform, SCHEMA]

    def make(scratch: Path) -> packages.Packed:
        what, only = f"{pin.version}'s dependencies", next(iter(one_gpu), None)
        facts = installed(host, scratch / "site", locked, what, rules, only)
        as_of = {"resolved_as_of": pin.resolve_as_of.isoformat()}
        return packages.Packed([(scratch / "site", "site")], as_of | facts)

    said = f"packing the dependencies of {pin.version} (a few minutes, once)"
    return packages.kept("sites", [*made_of, *one_gpu], said, "site.tar.xz", make)


def resolve(pin: Pin, host: Host, holds: Iterable[str]) -> str:
    """What is installed, as hashed requirements: the release's dependencies as of its day.

    holds: versions of what is made for a carried torch. Torch itself is left out here, so that
    nothing else would hold them to it.
    """
    excluded = [*host.brings, *_never_reached(pin), *lock.cuda_libraries(CUDA)]
    index = packages.Index(host)
    words = ["--exclude-newer", until(pin.resolve_as_of), "--prerelease=allow"]
    text = body(index.resolve([f"sglang=={pin.version}", "dill", *holds], words, excluded))
    return without("sglang", text)


def without(package: str, locked: str) -> str:
    """Hashed requirements, less a package."""
    return re.sub(rf"(?m)^{package}==.*\n(?:    --hash.*\n)*", "", locked)


def trim_rules(sm: int, flash: bool = False) -> tuple[packing.Trimmed, ...]:
    """TRIMMED, the kernels of sgl_kernel that are built for another GPU than `sm`, and FLASH where
    it is not wanted."""
    others = tuple(f"sgl_kernel/sm{other}" for other in (90, 100, 103, 120) if other != sm)
    unwanted = () if flash else (FLASH,)
    return (*unwanted, *TRIMMED, packing.Trimmed(f"kernels for GPUs other than sm_{sm}", others))


def installed(
    host: Host,
    site: Path,
    locked: str,
    what: str,
    rules: Iterable[packing.Trimmed],
    sm: int | None,
    own: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Install packages into `site` and trim them; what the manifest says of them. sm: the one kind
    of GPU whose code stays, None for all; own: packages that may ask for CUDA libraries beside
    those made for torch."""
    packages.Index(host).install(locked, site, what)
    return {
        "packages": re.findall(r"(?m)^(\S+==\S+)", locked),
        "trimmed": [packing.trim(site, rule) for rule in rules],
        "zeroed": asdict(elf.zero_all(site, sm)) if sm else None,
        "asks": carried.asks(site, (*own, *carried.MADE_FOR_TORCH)) if sm else [],
    }


def lay_host_files(folder: Path, plan: dict[str, Any]) -> None:
    """Write what a host's Python runs before an engine. plan: "stand_ins", modules."""
    folder.mkdir()
    for file in HOSTSITE.glob("*.py"):
        shutil.copy(file, folder / file.name)
    (folder / "patchqueue_site.json").write_text(json.dumps(plan, indent=1) + "\n")
