"""A bundle that carries torch, or another engine for a host without an index."""

import argparse
import ctypes
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fakes
import gpumodules
import msgspec
import pytest
from elffiles import CODE, PTX, fat_binary, linked
from fakes import ROOT, TAG, unpack
from served import Site

from bundle import carried, host, peer
from bundle.carried import Library, Origin
from patchqueue.outcome import Refused
from patchqueue.upstream.source import file_sha256

OURS, THEIRS = b"code for sm_90 ", b"code for sm_80 "
CODES = fat_binary((CODE, 80, THEIRS), (CODE, 90, OURS), (PTX, 90, b"as text"))
NCCL, CUBLAS = "nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libcublas.so.13"


def brings(path: str, *offers: str) -> dict[str, Library]:
    return {Path(path).name: Library(path, "made==1", frozenset(offers))}


CUFFT = "nvidia/cu13/lib/libcufft.so.12"


@pytest.mark.parametrize(
    ("name", "asked", "own", "origin", "said"),
    [
        (NCCL, "ncclSend", brings(NCCL, "ncclSend"), Origin.HOST, "made==1 has all that is asked"),
        (NCCL, "ncclSend ncclNew", brings(NCCL, "ncclSend"), Origin.CARRIED, "made==1 lacks ncclN"),
        (NCCL, "ncclA ncclB", brings(NCCL), Origin.CARRIED, "made==1 lacks ncclA and 1 more"),
        # where torch does not look for it, the host's own is of no use
        (NCCL, "", brings("nvidia/cu13/lib/libnccl.so.2"), Origin.CARRIED, "lacks its place"),
        (NCCL, "", {}, Origin.CARRIED, "the host's torch brings none of that name"),
        ("nvidia/cufft/lib/libcufft.so.11", "cufftCreate", {}, Origin.STAND_IN, "no run makes any"),
        (CUFFT, "", brings(CUFFT), Origin.HOST, "all that is asked"),
    ],
)
def test_where_a_library_comes_from(name, asked, own, origin, said):
    found = carried.choose(Path(name).name, dict.fromkeys(asked.split()), own, brings(name))
    assert found.origin is origin and said in found.reason


def test_a_library_that_nothing_brings_is_named():
    with pytest.raises(Refused, match="torch wants libcublas.so.14, which none of the packages"):
        carried.choose("libcublas.so.14", {}, {}, {})


# Wheels


def wheel(folder: Path, package: str, files: dict[str, bytes], requires: str = "") -> Path:
    """A small wheel for every host. requires: its requirements, separated by blanks."""
    name, _, version = package.partition("==")
    own = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires.split())
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{own}.dist-info/RECORD"
    files = files | {f"{own}.dist-info/METADATA": metadata, f"{own}.dist-info/WHEEL": about}
    files[record] = "".join(f"{one},,\n" for one in [*files, record])
    return fakes.write_wheel(folder / f"{own}-py3-none-any.whl", files)


Package = tuple[str, dict[str, bytes], str]  # its name and version, its files, what it requires


def cuda(version: int, nccl: str) -> list[Package]:
    """The packages of a CUDA, a function in each library. nccl: its version, and functions."""
    suffix, place = ("", "cu13/lib") if version == 13 else ("-cu12", "{}/lib")
    runtime, fft = ("13", "12") if version == 13 else ("12", "11")
    libraries = {
        f"cuda-runtime{suffix}": {f"libcudart.so.{runtime}": ([], ["cudaMalloc"])},
        f"cublas{suffix}": {
            f"libcublas.so.{runtime}": ([f"libcublasLt.so.{runtime}"], ["cublasSetStream"]),
            f"libcublasLt.so.{runtime}": ([], ["cublasLtMatmul"]),
        },
        f"cufft{suffix}": {f"libcufft.so.{fft}": ([], ["cufftCreate"])},
        f"nccl-cu{version}": {"libnccl.so.2": ([], ["ncclSend", *nccl.split()[1:]])},
    }
    made = []
    for name, files in libraries.items():
        folder = "nccl/lib" if name.startswith("nccl") else place.format(name.split("-cu12")[0])
        content = {
            f"nvidia/{folder}/{file}": linked(needed, (), offers, CODES)
            for file, (needed, offers) in files.items()
        }
        package = f"nvidia-{name}=={nccl.split(maxsplit=1)[0] if 'nccl' in name else version}"
        made.append((package, {**content, "nvidia/__init__.py": b""}, ""))
    return made


def torch(version: str, number: int, nccl: str) -> list[Package]:
    """torch for a CUDA, with that CUDA's packages."""
    libraries = cuda(number, nccl)
    fft = "12" if number == 13 else "11"
    needed = [f"libcudart.so.{number}", f"libcublas.so.{number}", f"libcufft.so.{fft}"]
    wants = ["cublasSetStream", "cufftCreate", "ncclSend", *nccl.split()[1:]]
    files = {
        "torch/__init__.py": f"__version__ = {version!r}\n".encode(),
        "torch/lib/libtorch_cuda.so": linked([*needed, "libnccl.so.2"], wants, (), CODES),
        "torch/lib/added.o": b"\x7fELF\x02\x01 an object file",
        "torch/bin/protoc": b"a compiler",
        "triton/backends/nvidia/bin/ptxas": b"#!/bin/sh\necho assembled $*\n",
        "triton/backends/nvidia/bin/ptxas-blackwell": b"a second one\n",
    }
    return [(f"torch=={version}", files, " ".join(one[0] for one in libraries)), *libraries]


HOST_TORCH = torch("2.11.0", 13, "2.28")
NEWER, OLDER = torch("2.14.1", 13, "2.30 ncclNew"), torch("2.9.1", 12, "2.27")


def vision(number: int, wants: str = "libcublas.so.13", requires: str = "") -> Package:
    """torchvision, as made for one torch; wants: a CUDA library that it calls."""
    library = linked([wants], ["cublasSetStream"], (), CODES)
    about = f"number = {number}\n".encode()
    files = {"torchvision/a.py": about, "torchvision/_C.so": library}
    return f"torchvision=={number}", files, requires


def list_files(folder: Path, upload_time=lambda name: "2020-01-01T00:00:00Z") -> None:
    """Write the index's page of a package."""

    def row(file: Path) -> dict:
        about = {"filename": file.name, "url": file.name, "upload-time": upload_time(file.name)}
        return about | {"hashes": {"sha256": file_sha256(file)}}

    files = [row(file) for file in sorted(folder.glob("*.whl"))]
    page = {"meta": {"api-version": "1.1"}, "name": folder.name, "files": files}
    (folder / "index.json").write_bytes(msgspec.json.encode(page))


@contextmanager
def served(project, monkeypatch, packages, **how) -> Iterator:
    """An index of these packages, and a description of a host with this Python."""
    home = project.root.parent
    for package, files, requires in packages:
        wheel(home / "index" / package.partition("==")[0], package, files, requires)
    for folder in (home / "index").iterdir():
        list_files(folder, **how)
    monkeypatch.setenv("UV_CACHE_DIR", str(home / "uv-cache"))
    python = f'"{sys.version_info.major}.{sys.version_info.minor}"'
    description = (ROOT / host.DEFAULT).read_text().replace('"3.12"', python)
    project.write(str(host.DEFAULT), description)
    with Site.started(home / "index") as site:
        monkeypatch.setenv("UV_DEFAULT_INDEX", site.url)
        yield project


@pytest.fixture
def index(project, monkeypatch):
    """An index with two releases' torch and the host's; the project's release is for `NEWER`."""
    made = [*HOST_TORCH, *NEWER, *OLDER]
    made += [(f"sglang=={fakes.VERSION}", {}, "torch==2.14.1 plain"), ("dill==1", {}, "")]
    plain = {"plain.py": b"kept = 1\n", "plain.so": linked((), (), (), CODES)}
    made += [("plain==1", plain, ""), *map(vision, (1, 2)), vision(3, "libcusolver.so.12")]
    made.append(vision(4, requires="torch==2.9.1"))
    with served(project, monkeypatch, made) as made:
        yield made


@pytest.fixture
def pack(index, tool):
    """Pack a bundle of that index: exit code, standard output, standard error."""
    return lambda *words: tool(index, "bundle", *words)


def is_trimmed(library: Path) -> bool:
    """Whether it has code for the host's GPU alone."""
    return OURS in library.read_bytes() and THEIRS not in library.read_bytes()


@pytest.fixture
def host_packages(tmp_path):
    """What the host's Python has: its own torch's CUDA libraries."""
    folder = tmp_path / "host-packages"
    for _, files, _ in HOST_TORCH[1:]:
        fakes.write_all(folder, files)
    (folder / "nvidia/__init__.py").unlink()
    return folder


def test_a_release_runs_on_its_own_torch_on_a_host_with_another(
    index, host_packages, tmp_path, pack, monkeypatch
):
    code, said, _ = pack("--carry-torch", "--part-size", "0.004")
    assert code == 0
    assert "torch 2.14.1 is carried; the host has 2.11.0. CUDA: 3 the host's own, 1 carried" in said
    made = index.root / "dist/bundle" / TAG
    parts = [path for path in made.iterdir() if ".tar.xz." in path.name]
    assert len(parts) > 3 and all(path.stat().st_size <= 0.004 * 2**20 for path in parts)
    kept = made / "torch.tar.xz.00"
    moved = kept.rename(tmp_path / "later")
    early = unpack(made, tmp_path / "there", host_packages)
    assert early.returncode == 1 and early.stderr.endswith("not here yet: torch.tar.xz.00\n")
    moved.rename(kept)
    done = unpack(made, tmp_path / "there", host_packages)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "there/site"
    assert (site / "torch/__init__.py").read_text() == "__version__ = '2.14.1'\n"
    assert is_trimmed(site / "plain.so") and not (site / "torch/bin/protoc").exists()
    assert os.readlink(site / CUBLAS) == str(host_packages / CUBLAS)
    own = (site / NCCL).read_bytes()
    assert is_trimmed(site / NCCL) and b"ncclNew" in own and b"as text" not in own
    assert is_trimmed(site / "torch/lib/libtorch_cuda.so")
    told = json.loads((made / "manifest.json").read_text())["carried"]
    nccl = told["libraries"].pop("libnccl.so.2")
    assert nccl == {"from": "carried", "reason": "nvidia-nccl-cu13==2.28 lacks ncclNew"}
    assert {one["from"] for one in told["libraries"].values()} == {"the host's own"}
    assert told["torch"] == "2.14.1" and told["zeroed"]["programs"] == 2
    assert {"nvidia-nccl-cu13==2.30", "torch==2.14.1"} <= {*told["packages"]}
    abouts = {path.name for path in site.glob("nvidia_*.dist-info")}
    assert abouts == {"nvidia_nccl_cu13-2.30.dist-info"}
    # installed packages stay: they are hard links into uv's cache, of which the next ones are made
    [cached] = (tmp_path / "uv-cache").rglob("torch/lib/libtorch_cuda.so")
    assert THEIRS in cached.read_bytes()
    monkeypatch.setattr(carried, "_made", lambda *words: pytest.fail("packed again"))
    assert pack("--carry-torch", "--part-size", "0.004")[0] == 0
    (host_packages / CUBLAS).unlink()
    done = unpack(made, tmp_path / "other", host_packages)
    assert done.returncode == 1
    assert f"has no {CUBLAS}, which torch 2.11.0 brings. Put the" in done.stderr
    assert not (tmp_path / "other/site/nvidia/cu13").exists()


def publish(index, requires: str) -> None:
    """Let the release require these."""
    folder = index.root.parent / "index/sglang"
    wheel(folder, f"sglang=={fakes.VERSION}", {}, requires)
    list_files(folder)


def require(index, monkeypatch, requires: str) -> None:
    """The same, for a uv that has not seen the release yet."""
    publish(index, requires)
    monkeypatch.setenv("UV_CACHE_DIR", str(index.root.parent / f"uv-cache-{requires[-1]}"))


def test_releases_of_one_torch_share_its_archive(index, host_packages, monkeypatch, tmp_path, pack):
    """What is made for it, as torchvision, may differ; the newest that is for that torch comes."""
    found = []
    for number, wanted in ((1, "==1"), (2, "!=3")):
        require(index, monkeypatch, f"torch==2.14.1 plain torchvision{wanted}")
        assert pack("--carry-torch")[0] == 0
        monkeypatch.setattr(carried, "_made", lambda *words: pytest.fail("packed again"))
        made, there = index.root / "dist/bundle" / TAG, tmp_path / f"there-{number}"
        found.append([path.read_bytes() for path in sorted(made.glob("torch.tar.xz.*"))])
        assert unpack(made, there, host_packages).returncode == 0
        assert (there / "site/torchvision/a.py").read_text() == f"number = {number}\n"
        assert is_trimmed(there / "site/torchvision/_C.so")
    assert found[0] == found[1] != []


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (
            "torch==2.14.1 plain torchvision==3",
            "for torch want libcusolver.so.12, which torch",
        ),
        ("plain", "[no-torch]\n    next: pack it without --carry-torch"),
    ],
)
def test_a_release_without_torch_or_with_more_of_cuda_is_refused(
    index, monkeypatch, pack, requires, said
):
    require(index, monkeypatch, requires)
    code, _, err = pack("--carry-torch")
    assert code == 1 and said in err


def test_a_release_that_pins_another_torch_is_packed_with_it_alone(index, pack):
    index.write(f"upstream/locks/{fakes.VERSION}.txt", "torch==2.14.1\n")
    code, _, err = pack()
    assert code == 1 and "pins torch 2.14.1, and torch-2.11 has 2.11.0" in err
    assert "pack it too: --carry-torch" in err and pack("--carry-torch")[0] == 0


def test_without_the_option_nothing_of_torch_is_packed_and_nothing_zeroed(index, tmp_path, pack):
    assert pack("--carry-torch")[0] == 0
    assert pack()[0] == 0  # not what the other has kept
    made = index.root / "dist/bundle" / TAG
    assert not [*made.glob("torch.tar.xz.*")]
    assert unpack(made, tmp_path / "there", tmp_path).returncode == 0
    assert THEIRS in (tmp_path / "there/site/plain.so").read_bytes()


def installed(folder: Path, packages: list[Package]) -> Path:
    for package, files, requires in packages:
        with zipfile.ZipFile(wheel(folder.with_name("wheels"), package, files, requires)) as made:
            made.extractall(folder)
    return folder


def test_another_cuda_is_carried_whole_but_for_what_no_run_calls(tmp_path):
    site = installed(tmp_path / "site", OLDER)
    own = carried.libraries(installed(tmp_path / "own", HOST_TORCH))
    facts = carried.lay(site, own, 90)
    assert facts["own_cuda"] and facts["linked"] == []
    assert {name: one["from"] for name, one in facts["libraries"].items()} == {
        "libcublas.so.12": "carried",
        "libcublasLt.so.12": "carried",  # libcublas needs it
        "libcudart.so.12": "carried",
        "libcufft.so.11": "a stand-in",
        "libnccl.so.2": "carried",
    }
    for name in ("cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12"):
        assert THEIRS not in (site / "nvidia" / name).read_bytes()
    stand_in = ctypes.CDLL(str(site / "nvidia/cufft/lib/libcufft.so.11"))
    assert stand_in.cufftCreate() == 100
    # the host's own folder nvidia shows through
    assert not (site / "nvidia/__init__.py").exists()


@pytest.mark.parametrize(("sm", "said"), [(90, "assembled --version\n"), (100, "")])
def test_one_assembler_goes_by_both_names(tmp_path, sm, said):
    site = installed(tmp_path / "site", NEWER)
    carried.lay(site, {}, sm)
    folder = site / "triton/backends/nvidia/bin"
    (folder / "ptxas").chmod(0o755)
    if said:
        assert fakes.run(folder / "ptxas-blackwell", "--version").stdout == said
    else:
        assert (folder / "ptxas-blackwell").read_bytes() == b"a second one\n"


@pytest.mark.parametrize("before", ["", "/more"])
def test_engines_find_both_cudas_where_torch_is_of_another(tmp_path, monkeypatch, before):
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    monkeypatch.setenv("LD_LIBRARY_PATH", before)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    place = gpumodules.load(monkeypatch, "launch").Place((tmp_path / "site",), tmp_path)
    assert place.environment()["LD_LIBRARY_PATH"] == before
    assert place.environment()["NCCL_NVLS_ENABLE"] == "0", "no server uses multicast"
    own = tmp_path / "site/nvidia/cuda_runtime/lib"
    own.mkdir(parents=True)
    wanted = ":".join([str(own), "/cuda/lib64", *filter(None, [before])])
    assert place.environment()["LD_LIBRARY_PATH"] == wanted


# --- peers

PLAN = {"model": "m", "watch": ""}
EARLY, LATE = "2026-07-25T02:00:00Z", "2026-07-30T00:00:00Z"


@pytest.fixture
def peers(project, monkeypatch):
    """An index with three releases of vllm, two for another torch, and a later package."""
    code, more = linked((), (), (), CODES), linked(["libcusolver.so.12"], (), (), CODES)
    own = {"vllm/__init__.py": b"", "vllm/kernels.so": code, "vllm/vllm-rs": b"x" * 99}
    made = [
        ("vllm==0.26.0", own, "torch==2.11.0 plain mcp"),
        ("vllm==0.28.0", own, "torch==2.13.0 plain"),
        ("vllm==0.29.0", own | {"vllm/more.so": more}, "torch==2.13.0 plain"),
        *HOST_TORCH,
        *(torch(version, 13, "2.30 ncclNew")[0] for version in ("2.13.0", "2.13.1")),
        *torch("", 13, "2.30 ncclNew")[-1:],
        ("dill==1", {}, ""),
        *((f"plain=={version}", {"plain.py": b"kept = 1\n"}, "") for version in (1, 2)),
        ("mcp==1", {"mcp.py": b""}, ""),
    ]
    day = lambda name: LATE if name.startswith("plain-2") else EARLY  # noqa: E731
    with served(project, monkeypatch, made, upload_time=day) as made:
        yield made


def test_a_peer_is_packed_as_of_its_release_less_what_the_host_has(peers, tmp_path, tool):
    code, out, err = tool(peers, "bundle", "--peer", "vllm==0.26.0", "--part-size", "0.0005")
    assert code == 0, out + err
    folder = peers.root / "dist/bundle/vllm-0.26.0"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["packages"] == ["plain==1", "vllm==0.26.0"]
    assert manifest["resolved_as_of"] == "2026-07-28" and manifest["zeroed"]["zeroed"] > 0
    assert len(manifest["parts"]) > 1 and "2 packages as of 2026-07-28" in out
    there = tmp_path / "there"
    done = unpack(folder, there, tmp_path)
    assert done.returncode == 0, done.stderr
    assert is_trimmed(there / "site/vllm/kernels.so")
    assert not (there / "site/vllm/vllm-rs").exists() and not (there / "site/torch").exists()
    words = ["python3", ROOT / "tests/gpu/gain.py", "--out", tmp_path / "out", "--limit", "none"]
    said = fakes.run(*words, "--peer", f"vllm={there}")
    assert "argument --limit: invalid float" in said.stderr, "its folder is taken as it is unpacked"


def torch_parts(index, tag: str) -> list[Path]:
    return sorted((index.root / "dist/bundle" / tag).glob("torch.tar.xz.*"))


def lock_torch(index, version: str) -> None:
    """Let the pinned release require this torch, on the index and in its lock."""
    text = f"torch=={version} \\\n    --hash=sha256:0\n"
    index.write(f"upstream/locks/{fakes.VERSION}.txt", text)
    publish(index, f"torch=={version} plain")


def test_a_peer_for_another_torch_brings_the_archive_of_a_release(
    peers, host_packages, tmp_path, monkeypatch, tool
):
    """vllm requires 2.13.0 and the release 2.13.1: extensions of one fit the other."""
    module = gpumodules.load(monkeypatch, "peers")
    lock_torch(peers, "2.13.1")
    words = ("--carry-torch", "--part-size", "0.0005")
    assert tool(peers, "bundle", TAG, *words)[0] == 0
    parts = {path.name: path.read_bytes() for path in torch_parts(peers, TAG)}
    code, out, err = tool(peers, "bundle", "--peer", "vllm==0.28.0", *words)
    assert code == 0, out + err
    assert "torch 2.13.1 is carried; the host has 2.11.0" in out
    own = {path.name: path.read_bytes() for path in torch_parts(peers, "vllm-0.28.0")}
    assert own == parts != {}
    there = tmp_path / "there"
    done = unpack(peers.root / "dist/bundle/vllm-0.28.0", there, host_packages)
    assert done.returncode == 0, done.stderr
    assert "2.13.1" in (there / "site/torch/__init__.py").read_text()
    assert (there / "site" / CUBLAS).is_symlink()
    (there / "site/added.pth").write_text("import os; os.environ['PTH'] = 'run'\n")
    options = argparse.Namespace(out=tmp_path)
    job, _ = module.ready(module.read(f"vllm={there}"), options, "vllm", PLAN)
    code = "import json, os, vllm, torch; print(json.dumps([torch.__version__, os.environ['PTH']]))"
    assert job.place.ask(code) == ["2.13.1", "run"]


@pytest.mark.parametrize(
    ("locked", "words", "said"),
    [
        ("", "--peer vllm==0.28.0 --carry-torch", "no pinned release has a torch as 2.13.0"),
        ("2.13.1", "--peer vllm==0.29.0 --carry-torch", "want libcusolver.so.12, which torch"),
        ("", f"{TAG} --peer vllm==0.26.0", "a peer is packed on its own"),
        ("", "--flash --peer vllm==0.26.0", "a peer is packed on its own"),
    ],
)
def test_a_peer_that_cannot_be_packed_is_refused(peers, tool, locked, words, said):
    if locked:
        lock_torch(peers, locked)
    code, out, err = tool(peers, "bundle", *words.split())
    assert code == 1 and said in out + err


@pytest.mark.parametrize("text", ["vllm", "vllm>=0.26.0", "sglang==0.5.23", "vllm==x", "==1", ""])
def test_what_names_no_peer_is_refused(text):
    with pytest.raises(ValueError, match="names no release.*: as vllm==0.33.0"):
        peer.read(text)
    assert peer.read("vllm==0.26.0") == peer.Peer("vllm", "0.26.0")
