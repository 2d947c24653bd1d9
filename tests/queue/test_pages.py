"""The commands that pages show: the parsers of the tool and of tests/gpu read the words of each,
and the releases and topics that they name exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import fakes
import pages
import pytest

from patchqueue.queue import series
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = [shown for page in PAGES for shown in pages.shown(page)]
CALLS = sorted({shown.command for shown in COMMANDS if pages.sessions(shown.command)[0]})
# a call of a script of tests/gpu: the script, and its words up to the shell's
GPU_CALL = re.compile(r"tests/gpu/(\w+\.py)((?: (?!&)[^;]+?)*)(?=;| &|$)")
GPU_CALLS = sorted({found for shown in COMMANDS for found in GPU_CALL.findall(shown.command)})
TO_COME = ("rebase", "pin")  # commands about releases that are not pinned yet
LATER = ("0.5.22", "0.5.24")  # releases that the pages name, and that are not pinned


def test_a_command_is_found_wherever_it_stands(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Type `scripts/nox check`, not `--all`.\n\n- so:\n\n  ```sh\n  scripts/nox apply   # lay"
        " it\n  ```\n\n```\nlog of nox\n```\n`A=b quilt pop`\n"
    )
    found = [(shown.command, shown.named) for shown in pages.shown(page)]
    assert found == [
        ("scripts/nox apply", False),
        ("scripts/nox check", True),
        ("A=b quilt pop", True),
    ]


@pytest.mark.parametrize(
    ("command", "means"),
    [
        ("nox -s apply test -- v0.5.9 --all", (["apply", "test"], ["v0.5.9", "--all"])),
        ('cd x && ../queue/scripts/nox rebase --skip "a b"', (["rebase"], ["--skip", "a b"])),
        ("quilt pop -a", ([], [])),
    ],
)
def test_what_a_call_of_nox_means(command, means):
    assert pages.sessions(command) == means


read_pins, read_sessions, make_parser = map(cache, (pins.load, fakes.sessions, fakes.parser))


@pytest.mark.parametrize("command", CALLS)
def test_the_words_of_a_command_are_its_own(command):
    names, words = pages.sessions(command)
    known, tools = read_pins(ROOT), read_sessions()
    for name in names if "--help" not in words and names != ["-l"] else ():
        assert name in {*tools, "clean"}
        if name in ("lint", "clean"):  # noxfile.py's and scripts/nox's: without words
            assert not words
            continue
        options = make_parser(name).parse_args([name, *words])
        assert options.run
        if name not in TO_COME:
            named = getattr(options, "releases", [])
            assert all(known.find(word) for word in named if not word.isupper())  # a placeholder


@pytest.mark.parametrize(("script", "words"), GPU_CALLS)
def test_the_words_of_a_gpu_script_are_its_own(script, words, tmp_path):
    """A wrong word behind them is all that its parser complains of; or a folder of another engine,
    which is not there."""
    command = [sys.executable, str(ROOT / "tests/gpu" / script), *shlex.split(words)]
    done = subprocess.run(
        [*command, "--no-such-word"], capture_output=True, text=True, cwd=tmp_path
    )
    said = done.stderr.strip().splitlines()[-1]
    wanted = "there is no folder" if "--peer" in words else "arguments: --no-such-word"
    assert done.returncode == 2 and wanted in said


def test_topics_and_releases_in_commands_are_there():
    known, (queue, _) = pins.load(ROOT), series.read(ROOT)
    topics, pinned = (
        {name.partition("/")[0] for name in queue.patches},
        {str(pin.version) for pin in known.all},
    )
    for command in {shown.command for shown in COMMANDS}:
        names, words = pages.sessions(command)
        named = {
            word.removeprefix("v")
            for word in words
            if re.fullmatch(r"v?0\.\d+\.\d+(\.post\d+)?", word)
        }
        assert named - pinned <= ({*LATER} if names[0] in TO_COME else set()) if names else True, (
            command
        )
        assert "--test" not in words or set(words) & topics, command
