"""A tiny sglang release and a project with a queue for it, in a temporary folder."""

from __future__ import annotations

import argparse
import difflib
import io
import itertools
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

from evidence import commands as proving
from evidence import harness as rules
from patchqueue import RELEASE as QUEUE
from patchqueue import commands as cli
from patchqueue.applying import apply, check, refresh
from patchqueue.files.run import find_quilt
from patchqueue.outcome import Problem, Refused
from patchqueue.queue import series
from patchqueue.upstream import pins, source
from patchqueue.upstream import release as releases
from patchqueue.wheels import record_of

ROOT = Path(__file__).resolve().parents[2]
VERSION, TAG = "9.9.1", "v9.9.1"
WHEEL = f"sglang-{VERSION}-py3-none-any.whl"
Files = Mapping[str, str]  # path -> content
LABEL = f"pcg.{QUEUE}"  # behind the + of a patched version
RUNNER = "python/sglang/srt/runner.py"
COUNT, CUT = "steps/count-once-more.patch", "steps/name-the-cut.patch"
# how `quilt refresh` writes a patch in the form of the queue
QUILT_FORM = ("-p", "ab", "--no-timestamps", "--no-index", "--sort")


def write(path: Path, content: str | bytes = "") -> Path:
    """Write a file as it is, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write these files below a folder."""
    for name, content in files.items():
        write(folder / name, content)
    return folder


def numbered(count: int, name: str = "step") -> str:
    """Lines that are all different, so that a hunk fits in one place only."""
    return "".join(f"{name}_{n} = {n}\n" for n in range(1, count + 1))


def added(text: str, at: int = 20) -> str:
    """The text with a line more behind that one."""
    return text.replace(f"step_{at} = {at}\n", f"step_{at} = {at}\nadded_step = {at}\n")


RELEASE = {  # member of the wheel -> content
    "sglang/__init__.py": "",
    "sglang/version.py": '__version__ = "9.9.1"\n',
    "sglang/_version.py": (
        "__version__ = version = '9.9.1'\n__version_tuple__ = version_tuple = (9, 9, 1)\n"
    ),
    "sglang/srt/runner.py": numbered(40),
    "sglang/srt/page.py": (
        "first = 1\n\f\nsecond = 2\nthird = 3\nfourth = 4\nfifth = 5\nsixth = 6\n"
    ),
    "sglang/srt/cut.py": "one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 5",  # no line end
    "sglang/srt/kernels.so": "not text",
    "sglang-9.9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.1\n",
    "sglang-9.9.1.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "sglang-9.9.1.dist-info/RECORD": "",
}


def release_of(version: str) -> dict[str, str]:
    """The release's files as another version would have them."""
    texts = RELEASE.items()
    return {name.replace(VERSION, version): text.replace(VERSION, version) for name, text in texts}


def write_wheel(path: Path, files: Mapping[str, str]) -> Path:
    """A wheel with these members: the same bytes every time, folders among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        folders = {f"{folder}/": "" for name in files for folder in PurePosixPath(name).parents}
        for name, content in {**folders, **files}.items():
            if name != "./":
                archive.writestr(zipfile.ZipInfo(name, (2030, 1, 2, 0, 0, 0)), content)
    return path


def diff(path: str, before: str, after: str) -> str:
    """`diff -U3` of one file, in quilt's form."""
    old, new = ([*io.StringIO(text, newline="\n")] for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    mark = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + mark for line in lines)


HEADER = {
    "Subject": "Count the steps once more",
    "Description": "Why: without it a user saw\n too few steps.",
    "Origin": "own",
    "Upstream-Status": "Pending",
    "Probe": f"{RUNNER} :: added_step",
    "Overlay": "none",
    "Test": "tests/revision/test_steps.py",
}


def header(**changes: str | list[str] | None) -> str:
    """A header that is right but for `changes`, with _ for -; None leaves a field out."""
    fields: dict = HEADER | {name.replace("_", "-"): value for name, value in changes.items()}
    return "".join(
        f"{name}: {value}\n"
        for name, values in fields.items()
        for value in (values if isinstance(values, list) else [values])
        if value is not None
    )


def patch_text(path: str = RUNNER, before: str = numbered(40), after: str = "", **changes) -> str:
    """A whole patch; without `after` it adds a line behind the 20th."""
    return f"{header(**changes)}\n{diff(path, before, after or added(before))}"


def variant_text(of: str = COUNT) -> str:
    """A variant with the hunks of `patch_text()`."""
    return f"Variant-Of: {of}\n\n" + patch_text().split("\n\n", 1)[1]


@dataclass
class Project:
    """A project's folder."""

    root: Path
    cache: Path
    wheels: Path

    @property
    def tree(self) -> Path:
        return self.root / "work" / TAG

    @property
    def pins(self) -> pins.Pins:
        return pins.load(self.root)

    @property
    def pin(self) -> pins.Pin:
        return self.pins.find(TAG)

    def write(self, name: str | Path, content: str | bytes) -> Path:
        """Write one file, as it is. name: below the project's folder, or a whole path."""
        return write(self.root / name, content)

    def guards(self, count: str, cut: str) -> None:
        """Write the series: its two patches with these guards."""
        self.write("series", f"# order\n{COUNT}  # {count}\n{CUT}      # {cut}\n")

    def queue(self, count: str, cut: str, overlay: str = "python/sglang/srt/steps/") -> None:
        """Write two patches for these releases. overlay: the first one's field."""
        self.guards(count, cut)
        self.write(f"patches/{COUNT}", patch_text(Overlay=overlay))
        path, before = "python/sglang/srt/cut.py", RELEASE["sglang/srt/cut.py"]
        text = patch_text(path, before, f"{before}\nsix = 6", Probe=f"{path} :: six = 6")
        self.write(f"patches/{CUT}", text)
        self.write("tests/revision/test_steps.py", "")

    def package(self) -> None:
        """Give the overlay the real package of the queue."""
        name = f"overlay/{series.PACKAGE}"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, self.root / name, ignore=ignored)

    def edit(self, name: str | Path, old: str, new: str) -> None:
        """Replace text that must be there. name: as of `write`."""
        path = self.root / name
        text = path.read_bytes().decode()
        assert old in text, f"{old!r} is not in {name}"
        path.write_bytes(text.replace(old, new).encode())

    def release(self, version: str = VERSION, files: Files | None = None, **changes: str) -> Path:
        """Make a wheel of a release, and pin it. changes: as of `newer`, without `files`."""
        name = f"sglang-{version}-py3-none-any.whl"
        wheel = write_wheel(self.wheels / name, files) if files else self.newer(version, **changes)
        releases.add_pin(self.root, version, self.wheels)
        return wheel

    def newer(self, version: str = "9.9.2", **changes: str | None) -> Path:
        """A wheel of another release, with other files of sglang/srt/ (None: without it)."""
        files = release_of(version)
        for stem, content in changes.items():
            files[f"sglang/srt/{stem}.py"] = content
        there = {name: content for name, content in files.items() if content is not None}
        return write_wheel(self.wheels / f"sglang-{version}-py3-none-any.whl", there)

    def warm(self) -> None:
        """Put every release into the cache."""
        for each in self.pins.all:
            source.fetch(each, self.wheels)

    def place(self) -> None:
        """Write the tree that the queue makes of every release, each in the cache."""
        self.warm()
        check.write(self.root, self.pins.all)

    def check(self) -> check.CheckReport:
        return check.check(self.root, self.pins.all)

    def apply(self, origin: Path | None = None, tag: str = TAG, **options) -> apply.Report:
        return apply.apply(self.root, self.pins.find(tag), origin, **options)

    def refresh(self, tag: str = TAG, add: bool = False) -> tuple:
        """What is written, and the report of the apply behind it."""
        return refresh.refresh(self.root, self.pins, self.pins.find(tag), add)

    def unapply(self) -> apply.Report:
        return apply.unapply(self.root, self.pin)

    def checkout(self, folder: Path, tag: str | None = TAG, files: Files = RELEASE) -> Path:
        """The release as a git checkout with upstream's layout; a further call is a commit."""
        for name, content in files.items():
            if name.startswith("sglang/") and name != "sglang/_version.py":
                write(folder / "python" / name, content)
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "release")
        if tag:
            git(folder, "tag", "-a", tag, "-m", tag)
        return folder


def make(root: Path, cache: Path, wheels: Path) -> Project:
    """A project that is right in every way: one release, two patches, one overlay file."""
    project = Project(root, cache, wheels)
    (root / "upstream").mkdir(parents=True)
    project.release()
    project.queue(">=9.9,<10", "==9.9.1")
    project.write("overlay/python/sglang/srt/steps/__init__.py", '"""Steps of our own."""\n')
    return project


def git(folder: Path, *arguments: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    settings = ("user.name=a", "user.email=a@b", "init.defaultBranch=main")
    settings += ("commit.gpgSign=false", "tag.gpgSign=false")
    words = [word for one in settings for word in ("-c", one)]
    return run("git", *words, *arguments, cwd=folder, check=True).stdout


def unpack(bundle: Path, there: Path, *packages: Path, **options):
    """Unpack a bundle on a host whose Python has these packages."""
    known = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, packages))}
    return run(bundle / "unpack", there, env=known, **options)


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep what it says."""
    return subprocess.run([*map(str, words)], capture_output=True, text=True, **options)


def author(home: Path) -> None:
    """Let git know whose commits are made there."""
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file below the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def exactly(*places: Path) -> dict[str, object]:
    """All that is there: bytes, times and inodes of files, modes and owners of folders too."""
    found: dict[str, object] = {}
    walked = (step for place in places for step in os.walk(place))
    below = (os.path.join(top, name) for top, *names in walked for name in itertools.chain(*names))
    for path in filter(os.path.lexists, map(str, (*places, *below))):
        status, is_file = os.lstat(path), os.path.isfile(path)
        file = is_file and (Path(path).read_bytes(), status.st_mtime_ns, status.st_ino)
        owner = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        found[path] = (file or "folder", *owner)
    return found


@contextmanager
def unchanged(*places: Path) -> Iterator[None]:
    """Within it nothing is written in these places."""
    before = exactly(*places)
    yield
    assert exactly(*places) == before


def install(site: Path, files: Mapping[str, str] | None = None, version: str = VERSION) -> Path:
    """The release as pip would leave it in a folder of packages, byte code and RECORD included."""
    write_all(site, files or release_of(version))
    code = site / "sglang/srt/__pycache__"
    code.mkdir()
    for name in ("runner.cpython-312.pyc", "runner.cpython-312.opt-1.pyc", "page.cpython-312.pyc"):
        (code / name).write_bytes(b"byte code of " + name.encode())
    record(site, version)
    return site


def record(site: Path, version: str = VERSION, name: str | None = None) -> None:
    """Write RECORD anew, with the line ends that pip gives it."""
    info = f"{name or f'sglang-{version}.dist-info'}/RECORD"
    members = {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in sorted(site.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    members.pop(info, None)
    (site / info).write_bytes(record_of(members, info).replace(b"\n", b"\r\n"))


def verified(folder: Path) -> dict:
    """What the tree's own module says, with the standard library alone."""
    file = folder / series.PACKAGE.removeprefix("python/") / "report/provenance.py"
    code = (
        "import dataclasses, importlib.util, json, sys\n"
        "spec = importlib.util.spec_from_file_location('provenance', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['provenance'] = module\n"
        "spec.loader.exec_module(module)\n"
        "found = module.verify()\n"
        "print(json.dumps({**dataclasses.asdict(found), 'intact': found.intact,"
        " 'said': list(module.lines(found)), 'version': module.read().version}))"
    )
    words = [sys.executable, "-I", "-S", "-B", "-c", code, file]
    return json.loads(run(*words, check=True).stdout)


def harness(project: Project) -> str:
    """Give a project rules to judge by, of the models and modes that tests/gpu has: their hash."""
    known = json.loads((ROOT / rules.FILE).read_text(encoding="utf-8"))
    project.write(str(rules.FILE), json.dumps(known | {"files": ["rules"]}))
    project.write("tests/gpu/rules", "agree\n")
    return rules.identity(project.root)


def sessions() -> set[str]:
    """The names of noxfile.py's sessions: of its functions, and of the commands it lists."""
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    made = re.findall(r"(?m)^def (\w+)\(session: nox\.Session\)", text)
    return {*made, *re.findall(r'(?m)^    "([\w-]+)": \("', text)}


def to_repository(project: Project, home: Path) -> None:
    """Make the project a git repository with one commit."""
    project.write(".gitignore", "/work/\n/dist/\n")
    author(home)
    git(project.root, "init", "-q")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-q", "-m", "state")


def as_clone(root: Path) -> None:
    """Give a project what the sessions run: noxfile.py, scripts/, and this environment."""
    shutil.copy(ROOT / "noxfile.py", root)
    (root / "scripts").mkdir()
    for name in ("nox", "requirements.txt"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    for name in ("scripts/patchqueue", "lab"):
        (root / name).symlink_to(ROOT / name)
    tools = root / ".nox/tools"
    (tools / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/requirements.txt", tools / "made-from.txt")
    (tools / "made-at.txt").write_text(f"{tools}\n")
    program(tools / "bin/python", f'exec "{sys.executable}" "$@"')
    program(tools / "bin/nox", f'exec "{sys.executable}" -m nox "$@"')


def quilt(tree: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run one quilt command in a tree, by no configuration; what it says, in order."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    engine = find_quilt(source.cache_folder())
    done = engine.run(tree, "--quiltrc", "-", *words, **how)
    assert not check or done.returncode in (0, 2), done.stdout  # 2: there is nothing to do
    return done


def main(words: Sequence[str]) -> int:
    """Run a command, as the sessions of noxfile.py do: each by the command line that has it."""
    return _line(words).main(words)


def parser(command: str) -> argparse.ArgumentParser:
    return _line([command])._parser()


def _line(words: Sequence[str]) -> ModuleType:
    return proving if {command.name for command in proving.COMMANDS} & {*words} else cli


def program(path: Path, line: str) -> Path:
    """Write a shell script that does this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def in_child(call) -> int:
    """Run it in a forked process: its exit status, negative for the signal that ended it."""
    child, code = os.fork(), 1
    if child == 0:
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(number: int, run: Callable[[], object]) -> None:
    """Do something in a process that is killed at the number-th rename."""

    def killed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            killed_at(number, patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
            run()

    assert in_child(killed) == -signal.SIGKILL


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, die=interrupt) -> None:
    """The process dies at the number-th rename."""
    calls = []

    def dying(function):
        def wrapped(*arguments, **options):
            calls.append(function)
            if len(calls) == number:
                die()
            return function(*arguments, **options)

        return wrapped

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


def refused(call: Callable[..., object], *arguments: object, **options: object) -> tuple[str, str]:
    """The name of the one problem that a call is refused for, and the problem's whole text."""
    problem = problem_of(call, *arguments, **options)
    return problem.name, str(problem)


def problem_of(call: Callable[..., object], *arguments: object, **options: object) -> Problem:
    """The one problem that a call is refused for."""
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    (problem,) = caught.value.problems
    return problem
