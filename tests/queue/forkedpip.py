"""pip in a fork of the tests' process: a process of its own, as the tool has it, but pip is
imported once and not each time.

Most of the time that the tool waits for pip, Python starts and imports pip. The tests ask it 300
times.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import mimetypes
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pip
from pip._internal.commands import create_command
from pip._internal.network.session import user_agent

COMMANDS = ("config", "download", "index")
IMPORTED_LATE = (
    *(
        "pip._internal.cli.main_parser",
        "pip._internal.metadata.importlib",
        "pip._internal.utils.wheel",
    ),
    *(
        "pip._internal.resolution.resolvelib.resolver",
        "pip._vendor.distro",
        "pip._vendor.truststore",
    ),
)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What patchqueue.upstream.index._pip returns for the same words."""
    assert command[:3] == [sys.executable, "-m", "pip"]
    main = load()
    with tempfile.TemporaryDirectory() as space:
        files = Path(space, "stdout"), Path(space, "stderr")
        child = os.fork()
        if not child:
            _in_child(main, command, folder, files)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return subprocess.CompletedProcess(command, code, *(file.read_text() for file in files))


@functools.cache
def load() -> Callable[[list[str]], int]:
    for name in COMMANDS:
        create_command(name)
    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):  # other versions of pip have other modules
            importlib.import_module(name)
    mimetypes.init()  # reads the system's list
    user_agent()  # asks the system what it is, in three processes, and keeps most of that
    return importlib.import_module("pip._internal.cli.main").main


def _in_child(
    main: Callable[[list[str]], int], command: list[str], folder: Path, files: tuple[Path, Path]
) -> None:
    """Run pip with its output in the files. Does not return."""
    code = 1
    try:
        for number, (name, file) in enumerate(zip(("stdout", "stderr"), files), start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
            setattr(sys, name, open(number, "w", closefd=False))
        os.chdir(folder)
        os.environ.setdefault("PIP_RETRIES", "1")  # as the tool does
        sys.argv = [str(Path(pip.__file__).parent / "__main__.py"), *command[3:]]
        code = main(command[3:])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
