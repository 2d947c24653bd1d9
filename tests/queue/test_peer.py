"""Packing another engine for a host without an index, the whole way with small wheels."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import fakes
import gpumodules
import pytest
from elffiles import linked
from fakes import ROOT
from test_carried import (
    CODES,
    CUBLAS,
    HOST_TORCH,
    host_packages,  # noqa: F401
    is_trimmed,
    list_files,
    pack,  # noqa: F401
    served,
    torch,
    unpack,
    wheel,
)

from bundle import peer

PLAN = {"model": "m", "watch": ""}
EARLY, LATE = "2026-07-25T02:00:00Z", "2026-07-30T00:00:00Z"


@pytest.fixture
def index(project, monkeypatch):
    """An index with three releases of vllm, two of them for another torch, and a package that has
    a later version than the release."""
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


def test_a_peer_is_packed_as_of_its_release_less_what_the_host_has(
    index,
    tmp_path,
    pack,  # noqa: F811
):
    code, out, err = pack("--peer", "vllm==0.26.0", "--part-size", "0.0005")
    assert code == 0, out + err
    folder = index.root / "dist/bundle/vllm-0.26.0"
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
    said = subprocess.run([*words, "--peer", f"vllm={there}"], capture_output=True, text=True)
    assert "argument --limit: invalid float" in said.stderr, "its folder is taken as it is unpacked"


def torch_parts(index, tag: str) -> list[Path]:
    return sorted((index.root / "dist/bundle" / tag).glob("torch.tar.xz.*"))


def lock_torch(index, version: str) -> None:
    """Let the pinned release require this torch, on the index and in its lock."""
    index.write(
        f"upstream/locks/{fakes.VERSION}.txt", f"torch=={version} \\\n    --hash=sha256:0\n"
    )
    folder = index.root.parent / "index/sglang"
    wheel(folder, f"sglang=={fakes.VERSION}", {}, f"torch=={version} plain")
    list_files(folder)


def test_a_peer_for_another_torch_brings_the_archive_of_a_release(
    index,
    host_packages,  # noqa: F811
    tmp_path,
    monkeypatch,
    pack,  # noqa: F811
):
    """vllm requires 2.13.0 and the release 2.13.1: extensions of one fit the other."""
    peers = gpumodules.load(monkeypatch, "peers")
    lock_torch(index, "2.13.1")
    words = ("--carry-torch", "--part-size", "0.0005")
    assert pack(fakes.TAG, *words)[0] == 0
    parts = {path.name: path.read_bytes() for path in torch_parts(index, fakes.TAG)}
    code, out, err = pack("--peer", "vllm==0.28.0", *words)
    assert code == 0, out + err
    assert "torch 2.13.1 is carried; the host has 2.11.0" in out
    own = {path.name: path.read_bytes() for path in torch_parts(index, "vllm-0.28.0")}
    assert own == parts != {}
    there = tmp_path / "there"
    done = unpack(index.root / "dist/bundle/vllm-0.28.0", there, host_packages)
    assert done.returncode == 0, done.stderr
    assert "2.13.1" in (there / "site/torch/__init__.py").read_text()
    assert (there / "site" / CUBLAS).is_symlink()
    (there / "site/added.pth").write_text("import os; os.environ['PTH'] = 'run'\n")
    options = argparse.Namespace(out=tmp_path)
    job, _ = peers.ready(peers.read(f"vllm={there}"), options, "vllm", PLAN)
    code = "import json, os, vllm, torch; print(json.dumps([torch.__version__, os.environ['PTH']]))"
    assert job.place.ask(code) == ["2.13.1", "run"]


@pytest.mark.parametrize(
    ("locked", "words", "said"),
    [
        ("", "--peer vllm==0.28.0 --carry-torch", "no pinned release has a torch as 2.13.0"),
        ("2.13.1", "--peer vllm==0.29.0 --carry-torch", "want libcusolver.so.12, which torch"),
        ("", f"{fakes.TAG} --peer vllm==0.26.0", "a peer is packed on its own"),
        ("", "--flash --peer vllm==0.26.0", "a peer is packed on its own"),
    ],
)
def test_a_peer_that_cannot_be_packed_is_refused(index, pack, locked, words, said):  # noqa: F811
    if locked:
        lock_torch(index, locked)
    code, out, err = pack(*words.split())
    assert code == 1 and said in out + err


@pytest.mark.parametrize("text", ["vllm", "vllm>=0.26.0", "sglang==0.5.23", "vllm==x", "==1", ""])
def test_what_names_no_peer_is_refused(text):
    with pytest.raises(ValueError, match="names no release.*: as vllm==0.33.0"):
        peer.read(text)
    assert peer.read("vllm==0.26.0") == peer.Peer("vllm", "0.26.0")
