"""Make folders of packages small, and pack them into archives and parts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from patchqueue.outcome import Refused
from patchqueue.upstream.source import file_sha256

from .rules import Trimmed


def trim(site: Path, rule: Trimmed) -> dict[str, Any]:
    """Remove what a rule names below `site`; what the manifest says of it, with the bytes that
    went."""
    size = 0
    for path in [path for pattern in rule.patterns for path in site.glob(pattern)]:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size += sum(file.stat().st_size for file in files)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return {"reason": rule.reason, "patterns": list(rule.patterns), "bytes": size}


def archive(out: Path, folders: Iterable[tuple[Path, str]], effort: int = 6) -> None:
    """A .tar.xz of folders under new names: sorted, without owners or dates, so that equal content
    packs equally. effort: xz's, 0 to 9. Raises Refused where it cannot be written, or xz is not
    installed."""
    if not shutil.which("xz"):
        raise Refused.of("no-xz", "bundle", "xz is not installed", "install xz-utils")
    # a broken pipe: xz has ended, and said why
    words, form = ["xz", "-T0", f"-{effort}", "-c"], tarfile.GNU_FORMAT
    with (
        contextlib.suppress(BrokenPipeError),
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=open(out, "wb")) as xz,
    ):
        # dereference: no hard links
        with tarfile.open(fileobj=xz.stdin, mode="w|", format=form, dereference=True) as archive:
            for folder, name in folders:
                for path in sorted(folder.rglob("*")):
                    if path.is_file() and "__pycache__" not in path.parts:
                        inner = f"{name}/{path.relative_to(folder).as_posix()}"
                        archive.add(path, inner, filter=_plain)
        if xz.stdin:
            xz.stdin.close()
    if xz.returncode:
        what = f"xz ended with code {xz.returncode}, for the reason above"
        step = "where the disk is full, free some space, then run it again"
        raise Refused.of("no-bundle", str(out), what, step)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry without owner and date, whose mode says whether it runs."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    runs = entry.name.endswith((".so", ".sh")) or entry.mode & 0o111
    entry.mode = 0o755 if runs else 0o644
    return entry


def split(archive: Path, folder: Path, name: str, size: int) -> list[dict[str, Any]]:
    """Cut an archive into parts of `size` bytes at most, name.00 and so on in `folder`; what the
    manifest says of each."""
    parts: list[dict[str, Any]] = []
    with archive.open("rb") as source:
        while block := source.read(size):
            part = folder / f"{name}.{len(parts):02d}"
            part.write_bytes(block)
            parts.append({"file": part.name, "sha256": file_sha256(part), "bytes": len(block)})
    return parts
