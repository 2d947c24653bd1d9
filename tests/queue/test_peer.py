"""Packing another engine for a host without an index, the whole way with small wheels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from threading import Thread

import fakes
import msgspec
import pytest
from elffiles import linked
from test_carried import CODES, OURS, THEIRS, fakes_python, list_files, run, unpack, wheel
from test_index_clients import Site

from patchqueue.wheels import host, peer

ROOT = Path(__file__).resolve().parents[2]
EARLY, LATE = "2026-07-25T02:00:00Z", "2026-07-30T00:00:00Z"


@pytest.fixture
def index(tmp_path, project, monkeypatch):
    """An index with two releases of vllm, one of them for another torch, and a package that has
    a later version than the release."""
    simple = tmp_path / "index"
    code = linked((), (), (), CODES)
    own = {"vllm/__init__.py": b"", "vllm/kernels.so": code, "vllm/vllm-rs": b"x" * 99}
    made = [
        ("vllm==0.26.0", own, "torch==2.11.0 plain mcp"),
        ("vllm==0.28.0", own, "torch==2.13.0 plain"),
        *(
            (f"torch=={version}", {"torch/__init__.py": b""}, "")
            for version in ("2.11.0", "2.13.0")
        ),
        *((f"plain=={version}", {"plain.py": b"kept = 1\n"}, "") for version in (1, 2)),
        ("mcp==1", {"mcp.py": b""}, ""),
    ]
    for package, files, requires in made:
        wheel(simple / package.partition("==")[0], package, files, requires)
    for folder in simple.iterdir():
        list_files(folder)
        page = msgspec.json.decode((folder / "index.json").read_bytes())
        for file in page["files"]:
            file["upload-time"] = LATE if file["filename"].startswith("plain-2") else EARLY
        (folder / "index.json").write_bytes(msgspec.json.encode(page))
    site = Site(simple, json=True)
    Thread(target=site.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", site.url)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    description = (ROOT / host.DEFAULT).read_text().replace('"3.12"', f'"{fakes_python()}"')
    project.write(str(host.DEFAULT), description)
    yield project
    site.shutdown()
    site.server_close()


def test_a_peer_is_packed_as_of_its_release_less_what_the_host_has(index, tmp_path, capsys):
    code, out, err = run(index, capsys, "--peer", "vllm==0.26.0", "--part-size", "0.0005")
    assert code == 0, out + err
    folder = index.root / "dist/bundle/vllm-0.26.0"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["packages"] == ["plain==1", "vllm==0.26.0"]
    assert manifest["resolved_as_of"] == "2026-07-28" and manifest["zeroed"]["zeroed"] > 0
    assert len(manifest["parts"]) > 1 and "2 packages as of 2026-07-28" in out
    there = tmp_path / "there"
    done = unpack(folder, there, tmp_path)
    assert done.returncode == 0, done.stderr
    found = (there / "site/vllm/kernels.so").read_bytes()
    assert OURS in found and THEIRS not in found
    assert not (there / "site/vllm/vllm-rs").exists() and not (there / "site/torch").exists()
    words = ["python3", ROOT / "tests/gpu/gain.py", "--out", tmp_path / "out", "--limit", "none"]
    said = subprocess.run([*words, "--peer", f"vllm={there}"], capture_output=True, text=True)
    assert "argument --limit: invalid float" in said.stderr, "its folder is taken as it is unpacked"


def test_a_peer_for_another_torch_is_refused(index, capsys):
    code, out, err = run(index, capsys, "--peer", "vllm==0.28.0")
    assert code == 1 and not (index.root / "dist/bundle/vllm-0.28.0").exists()
    assert "vllm-0.28.0 requires torch 2.13.0, and torch-2.11 has 2.11.0" in out + err


def test_a_release_that_the_index_lacks_is_refused_in_uv_s_words(index, capsys):
    code, out, err = run(index, capsys, "--peer", "vllm==9")
    assert code == 1 and "uv could not resolve vllm-9" in out + err


def test_a_peer_is_packed_on_its_own(index, capsys):
    for more in (["v" + str(fakes.VERSION)], ["--carry-torch"], ["--flash"]):
        code, out, err = run(index, capsys, *more, "--peer", "vllm==0.26.0")
        assert code == 1 and "a peer is packed on its own" in out + err


@pytest.mark.parametrize("text", ["vllm", "vllm>=0.26.0", "sglang==0.5.23", "vllm==x", "==1", ""])
def test_what_names_no_peer_is_refused(text):
    with pytest.raises(ValueError, match="names no release.*: as vllm==0.26.0"):
        peer.read(text)
    assert peer.read("vllm==0.26.0") == peer.Peer("vllm", "0.26.0")
