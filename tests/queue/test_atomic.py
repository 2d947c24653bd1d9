"""Files written whole or not at all."""

from __future__ import annotations

import os

import pytest

from patchqueue.files import atomic


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    file = tmp_path / "new folder/file"
    atomic.write(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic.write(file, b"new")
    assert file.read_bytes() == b"old" and os.listdir(file.parent) == ["file"]


def test_content_and_name_are_on_the_disk_before_it_returns(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        noted = lambda *words, name=name, real=real: done.append(name) or real(*words)  # noqa: E731
        monkeypatch.setattr(os, name, noted)
    atomic.write(tmp_path / "file", b"content")
    assert done == ["fsync", "replace", "fsync"]
