"""Paths that a user types, as argparse types: each is meant from the folder that the user stands
in.

nox changes into the queue's folder before it runs the tool, and the noxfile tells the tool where
nox was called from, in PATCHQUEUE_CALLED_FROM. Without it the process's own folder counts. Who
stands there sees every path as they typed it.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

CALLED_FROM = "PATCHQUEUE_CALLED_FROM"
DEFAULT = "the one that upstream/pins.toml calls default"
FROM = "take the release from this wheel, folder of wheels, or git repository with its tag"
PLACE = "PATH|URL"
# as git tells them: a colon before the first slash, https://… or host:path
ADDRESS = re.compile(r"[^/]*:")


def add_origin(command: argparse.ArgumentParser) -> None:
    """Give a command the option --from."""
    command.add_argument("--from", dest="origin", type=place, metavar=PLACE, help=FROM)


def path(text: str) -> Path:
    """A file or folder."""
    folder, typed = os.environ.get(CALLED_FROM) or ".", Path(os.path.expanduser(text))
    return typed if _is_here(folder) else Path(_without_dots(os.path.join(folder, typed)))


def file(text: str) -> Path:
    """A file to write; `-` is where this process prints."""
    return Path("/dev/stdout") if text == "-" else path(text)


def place(text: str) -> str:
    """A file or folder, or the address of a git repository, which stays as it is."""
    typed = path(text)
    return text if not text or (ADDRESS.match(text) and not typed.exists()) else str(typed)


def release(text: str) -> str:
    """A wheel or a checkout; else a version, which stays as it is."""
    typed = path(text)
    return str(typed) if "/" in text or text.endswith(".whl") or typed.is_dir() else text


def program(text: str) -> str:
    """A program by its path; else by its name, as a shell finds it."""
    return str(path(text)) if "/" in text else text


def shown(written: Path) -> str:
    """A path that the tool has from its own folder, as the user can type it."""
    return str(written if _is_here(os.environ.get(CALLED_FROM) or ".") else Path.cwd() / written)


def _is_here(folder: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(".")


def _without_dots(name: str) -> str:
    """Easier to read, and the same file: behind a link, `..` is not the folder before it."""
    plain = os.path.normpath(name)
    return plain if os.path.realpath(plain) == os.path.realpath(name) else name
