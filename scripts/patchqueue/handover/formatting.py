"""Upstream's own form for Python files: put files into it, and say what upstream's linters have
against them.

Which tools, in which versions: upstream/format.toml, the one place that says so. uv fetches and
runs them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..files import record, run
from ..outcome import Refused

FILE = Path("upstream/format.toml")
FORMATTERS = {"ruff": ("format", "--quiet", "--isolated", "--no-cache"), "black": ("--quiet",)}
PLACE = re.compile(r":\d+(?::\d+)?:")


class Formatter(Struct, frozen=True, forbid_unknown_fields=True):
    """What formats the files of some releases."""

    releases: SpecifierSet
    tool: str


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The file: requirements as uv takes them ("ruff==0.15.1"), and their settings."""

    isort: str
    isort_settings: str
    lint: str
    lint_rules: str
    spell: str
    spell_ignore: str
    format: tuple[Formatter, ...]

    @property
    def formatter(self) -> str:
        return self.format[0].tool


def rules(root: Path, version: Version) -> Rules:
    """What upstream uses on a release. Raises Refused where format.toml does not say."""
    where, bad = str(FILE), "bad-format-rules"
    try:
        found = record.toml((root / FILE).read_bytes(), Rules, where, bad)
    except OSError as error:
        raise Refused.of(bad, where, f"cannot be read: {error.strerror}") from None
    used = tuple(one for one in found.format if one.releases.contains(version, prereleases=True))
    if not used:
        raise Refused.of(bad, where, f"does not say how {version} is formatted")
    return replace(found, format=used)


def tidy(files: Mapping[str, bytes], by: Rules) -> dict[str, bytes]:
    """Python files, by any paths, as upstream's hooks leave them; others as they are. Raises
    Refused where a tool fails."""
    python = {path: content for path, content in files.items() if path.endswith(".py")}
    if not python:
        return dict(files)
    with tempfile.TemporaryDirectory(prefix="patchqueue-format-") as space:
        folder = _write(Path(space), python, by)
        _run(by.isort, folder, "--quiet", "--settings-path", ".isort.cfg", *sorted(python))
        _run(by.formatter, folder, *FORMATTERS[by.formatter.partition("=")[0]], *sorted(python))
        return {**files, **{path: (folder / path).read_bytes() for path in python}}


def complaints(before: Mapping[str, bytes], after: Mapping[str, bytes], by: Rules) -> list[str]:
    """What upstream's linters have against `after` that they did not have against the same files in
    `before`."""
    linted = _complaints(after, by) - _complaints(before, by)
    spelled = _misspelled(after, by) - _misspelled(before, by)
    return sorted([*linted.elements(), *spelled.elements()])


def _complaints(files: Mapping[str, bytes], by: Rules) -> Counter[str]:
    names = sorted(
        path for path in files if path.endswith(".py") and not path.endswith("__init__.py")
    )
    if not names:
        return Counter()
    with tempfile.TemporaryDirectory(prefix="patchqueue-format-") as space:
        folder = _write(Path(space), {path: files[path] for path in names}, by)
        said = _run(
            by.lint,
            folder,
            "check",
            "--isolated",
            "--no-cache",
            "--quiet",
            "--output-format=concise",
            f"--select={by.lint_rules}",
            *names,
            good=(0, 1),
        )
    return Counter(
        PLACE.sub(":", line, count=1) for line in said.splitlines() if PLACE.search(line)
    )


def _misspelled(files: Mapping[str, bytes], by: Rules) -> Counter[str]:
    if not files:
        return Counter()
    with tempfile.TemporaryDirectory(prefix="patchqueue-format-") as space:
        folder = _write(Path(space), files, by)
        said = _run(by.spell, folder, "-L", by.spell_ignore, *sorted(files), good=(0, 65))
    return Counter(PLACE.sub(":", line, count=1) for line in said.splitlines())


def _write(folder: Path, files: Mapping[str, bytes], by: Rules) -> Path:
    (folder / ".isort.cfg").write_text(f"[settings]\n{by.isort_settings}")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def _run(tool: str, folder: Path, *words: str, good: tuple[int, ...] = (0,)) -> str:
    """The tool's output. Raises Refused with its last line where it fails, or cannot be fetched."""
    program = _folder_of(tool) / tool.partition("=")[0]
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode not in good:
        said = done.stderr.strip() or done.stdout.strip()
        raise _no_formatter(tool, said or f"ended with code {done.returncode}")
    return done.stdout


@cache
def _folder_of(tool: str) -> Path:
    """Where uv has the tool's programs, fetched first where that must be: to ask takes longer than
    most tools run."""
    asked = ["python", "-c", "import sysconfig; print(sysconfig.get_path('scripts'))"]
    try:
        return Path(run.uv("tool", "run", "--from", tool, *asked).stdout.decode().strip())
    except run.Failed as failure:
        raise _no_formatter(tool, failure.said) from None


def _no_formatter(tool: str, said: str) -> Refused:
    step = f"`uv tool run {tool} --version` should work"
    return Refused.of("no-formatter", tool, said.splitlines()[-1], step)
