"""Every command that a page shows is run as it stands there, in a home with a small clone of the
queue; or its words are checked, by the parsers of the tool and of tests/gpu.

RUN has the commands that are run, UNRUN why others are not.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import fakes
import pages
import pytest
from fakes import ROOT
from packaging.utils import parse_wheel_filename
from pages import PAGES

from patchqueue import RELEASE
from patchqueue.files.run import find_quilt
from patchqueue.handover import backport
from patchqueue.queue import series
from patchqueue.upstream import pins, source
from patchqueue.upstream.release import add_pin
from patchqueue.wheels import LABEL

COMMANDS = [shown for page in PAGES for shown in pages.shown(page)]

# What the small clone has: releases that the pages name, each of a few lines.
PURE, BUILT = "py3-none-any", "cp312-cp312-manylinux_2_34_x86_64"
PINNED = {"0.5.9": PURE, "0.5.11": BUILT, "0.5.12.post1": BUILT, "0.5.23": PURE}
LATER = ("0.5.22", "0.5.24")  # not pinned
TO_COME = ("rebase", "pin")  # sessions about releases that are not


class World:
    """A reader's home: a clone in ~/queue, ~/sglang, an installed sglang in ~/site, and ~/bin."""

    def __init__(self, home: Path):
        self.home, self.queue = home, home / "queue"
        self.sglang, self.site = home / "sglang", home / "site"
        self.project = fakes.Project(self.queue, home.parent / "cache", home.parent / "wheels")

    def run(self, command: str, folder: Path | None = None, code: int = 0) -> str:
        """What the command prints, typed into a shell in ~/queue or another folder."""
        variables = os.environ | {"PATH": f"{self.home / 'bin'}:{os.environ['PATH']}"}
        variables.pop("VIRTUAL_ENV", None)  # of the tests' own environment
        done = fakes.run("bash", "-c", command, cwd=folder or self.queue, env=variables)
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def make(folder: Path) -> World:
    """The home below `folder`, with its releases cached."""
    world = World(folder / "home")
    project, queue = world.project, world.queue
    (queue / "upstream").mkdir(parents=True)
    for version, kind in PINNED.items():
        wheel = project.wheels / f"sglang-{version}-{kind}.whl"
        fakes.write_wheel(wheel, fakes.release_of(version))
        add_pin(queue, version, project.wheels)
    text = (queue / "upstream/pins.toml").read_text()
    text = re.sub(r"(?m)^default = .*", 'default = "0.5.9"', text)
    project.write("upstream/pins.toml", text)
    project.warm()
    project.package()
    every = ">=0.5.9,<0.5.24"
    project.queue(every, every, "python/sglang/srt/prefill_graph/")
    ours = "pull-requests/steps/count-once-more/python/sglang/srt/counting.py"
    project.write(ours, "count = 1\n")  # upstream takes no package of ours
    project.place()
    fakes.as_clone(queue)
    return world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quilt_home: Path | None) -> World:
    (tmp_path / "cache").mkdir()
    if quilt_home:
        (tmp_path / "cache/quilt").symlink_to(quilt_home)
    made = make(tmp_path)
    for version in PINNED:
        made.project.checkout(made.sglang, f"v{version}", fakes.release_of(version))
    fakes.git(made.sglang, "update-ref", "refs/remotes/origin/main", "HEAD")
    _programs(made)
    fakes.install(made.site, fakes.release_of("0.5.9"), "0.5.9")
    (made.home / ".gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = ada@example.org\n[safe]\n\tdirectory = *\n"
    )
    return made


def _programs(world: World) -> None:
    """The reader's own programs, told that this host has Python 3.12 and ~/site."""
    engine, found = find_quilt(source.cache_folder()), world.home / "bin"
    settings = " ".join(f"{name}={shlex.quote(text)}" for name, text in engine.variables.items())
    # by its whole path: where quilt is installed, the name alone would find this program again
    fakes.program(found / "quilt", f'{settings} exec {shutil.which(engine.command)} "$@"')
    host = f"--target {world.site} --upgrade --python-version 3.12 --only-binary :all:"
    fakes.program(found / "nox", f'exec "{sys.executable}" -m nox "$@"')
    pip = f'exec "{sys.executable}" -m pip "$@" {host} --platform manylinux_2_34_x86_64'
    fakes.program(found / "pip", pip)
    own = f'exec "{sys.executable}" -m uv "$@"'
    # the tool asks another uv where it has none of its own, and not to install
    there = f"--offline {host} --python-platform x86_64-manylinux_2_34"
    fakes.program(found / "uv", f'[ "$2" = install ] || {own}\n{own} {there}')
    fakes.program(found / "python", f'PYTHONPATH="{world.site}" exec "{sys.executable}" "$@"')
    # uvx builds the tool of a repository, with packages that no test fetches: here it is this one
    tool = f'PYTHONPATH="{ROOT}/scripts" exec "{sys.executable}" -m patchqueue "$@"'
    asked = '[ "$1 $2 $3" = "--from git+REPOSITORY patchqueue" ]'
    fakes.program(found / "uvx", f"{asked} && shift 3 && {tool}")


@dataclass(frozen=True)
class Step:
    """A command as a page shows it. says: what it prints; put: what is written for a word."""

    command: str
    says: str
    where: str = "queue"
    put: dict[str, str] = field(default_factory=dict)

    def typed(self) -> str:
        text = self.command
        for word, value in self.put.items():
            assert word in text, f"{word!r} is not in {text!r}"
            text = text.replace(word, value)
        return text


def nox(words: str, says: str, **put: str) -> Step:
    """A command of the queue."""
    return Step(f"scripts/nox {words}", says, put=put)


# what the reader does between two commands
Deed = Callable[[World], object]


def edit(name: str, old: str, new: str) -> Deed:
    """Replace text of a file of the clone that must be there."""
    return lambda world: world.project.edit(name, old, new)


def resolve(world: World) -> None:
    """Solve the conflict: keep upstream's lines, and add the patch's behind them."""
    path = world.queue / "work/rebase-0.5.24/python/sglang/srt/runner.py"
    solved, text = "step_20 = 21\nadded_step = 20\n", path.read_text()
    path.write_text(re.sub(r"(?s)<<<<<<< .*?>>>>>>> [^\n]*\n", solved, text))


def see_the_site(world: World) -> None:
    (folder,) = world.queue.glob(".venv/lib/*/site-packages")
    (folder / "site.pth").write_text(f"{world.site}\n")


def is_so(claim: Callable[[World], bool]) -> Deed:
    def look(world: World) -> None:
        assert claim(world)

    return look


def packages_move(world: World) -> None:
    """Two releases appear that are not pinned; the newer one changed what both patches change."""
    for version in LATER:
        fakes.write_wheel(world.project.wheels / f"sglang-{version}-{PURE}.whl", moved(version))


def moved(version: str) -> dict[str, str]:
    files = fakes.release_of(version)
    if version == LATER[1]:
        for name, old, new in (("runner", "= 20", "= 21"), ("cut", "five = 5", "five = 55")):
            name = f"sglang/srt/{name}.py"
            files[name] = files[name].replace(old, new)
    return files


def fill_in(world: World) -> None:
    """Write the header of the new patch, as its author would."""
    text = fakes.header(
        Subject="Skip the pointer check",
        Probe=f"{fakes.RUNNER} :: step_1 = 11",
        Gap=">0.5.9: nobody has looked there",
    )
    world.run(f"mkdir patches/nsa; quilt header -r <<'END'\n{text}END", world.queue / "work/v0.5.9")


NEW, SITE = "python/sglang/srt/runner.py", {"DIR": "~/site"}
# Debian's settings put the patches' folder before the name
ADDED = Step(
    "cd work/v0.5.9 && quilt add python/sglang/…",
    "nsa/skip-pointer-check.patch",
    put={"python/sglang/…": NEW},
)
ONTO, SHORT = "backport --onto ~/sglang --base", "release/0.5.9-short"
LEFT_OUT = Step(
    f"scripts/nox {ONTO} v0.5.9 --without attention/plan-prefill-on-host {SHORT}",
    f"{SHORT} made",
    put={"attention/plan-prefill-on-host": "steps/name-the-cut"},
)
BREAKS = "overlay/python/sglang/srt/prefill_graph/breakable/breaks.py"
OWN = f"0.5.9+{fakes.LABEL}"
PATCHED = f"sglang 0.5.9, queue release {RELEASE}, 2 patches"
WHEEL = f"dist/sglang-{{}}+{fakes.LABEL}-cp312-cp312-manylinux_2_34_x86_64.whl"

RUN: dict[str, list[Step | Deed]] = {
    "apply": [
        nox("apply", "work/v0.5.9: 2 patches"),
        nox("apply", "already applied"),
        nox("apply v0.5.9", "already applied"),
        nox("clean", "next: `scripts/nox clean --yes` deletes them"),
        Step("nox -s apply -- v0.5.9", "already applied"),
        nox("apply v0.5.12.post1", "work/v0.5.12.post1"),
        nox("apply --help", "usage: scripts/nox apply"),
        Step("scripts/nox", "For maintainers"),
        Step(
            "cd work/v0.5.9 && find python/sglang -name '*.py' ! -path '*/sglang/_version.py'"
            " | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum",
            " -",
        ),
        Step("quilt pop -a", "No patches applied", "queue/work/v0.5.9"),
        nox("apply", "2 patches"),
        nox("quilt v0.5.9 pop -a", "No patches applied"),
        nox("unapply", "pristine"),
        nox("apply v0.5.11 --from PATH", "work/v0.5.11: 2 patches", PATH="../../wheels"),
    ],
    "a patch": [
        nox("apply v0.5.9", "2 patches"),
        nox("quilt v0.5.9 new nsa/skip-pointer-check.patch", "is now on top"),
        ADDED,
        edit(f"work/v0.5.9/{NEW}", "step_1 = 1\n", "step_1 = 11\n"),
        fill_in,
        nox("refresh v0.5.9", "patches/nsa/skip-pointer-check.patch"),
        nox("check", "0 problems"),
        edit(BREAKS, "from __future__", "# told\nfrom __future__"),
        nox("check --write", "upstream/pins.toml: trees"),
        nox("quilt v0.5.9 pop", "Now at patch"),
        nox("quilt v0.5.9 push", "nsa/skip-pointer-check.patch"),
        Step(
            "scripts/nox quilt v0.5.9 add python/sglang/…",
            "nsa/skip-pointer-check.patch",
            put={"python/sglang/…": "python/sglang/srt/cut.py"},
        ),
    ],
    "a release": [
        packages_move,
        nox(
            "rebase --newer",
            "sglang 0.5.24, with the patches of v0.5.23: 0 as they are, 0 to refresh, 0 merged"
            " upstream, 2 in conflict",
        ),
        nox("pin 0.5.24", "next: `scripts/nox rebase 0.5.24`"),
        nox("rebase 0.5.24", "steps/count-once-more:"),
        resolve,
        nox("rebase 0.5.24 --continue", "Next conflict in work/rebase-0.5.24, steps/name-the-cut:"),
        edit(f"patches/{fakes.CUT}", "Overlay:", "Gap: >=0.5.24: the cut is gone\nOverlay:"),
        nox("rebase 0.5.24 --continue", "No conflict is left on"),
        nox("check", "0 problems"),
    ],
    "a branch": [
        nox(f"{ONTO} v0.5.9 release/0.5.9-graphs", "release/0.5.9-graphs made"),
        nox(f"{ONTO} v0.5.11 release/0.5.11-graphs", "release/0.5.11-graphs made"),
        Step("cd ~/sglang && git switch release/0.5.11-graphs", "Switched to branch"),
        is_so(lambda world: "added_step" in (world.sglang / NEW).read_text()),
        lambda world: fakes.git(world.sglang, "switch", "-q", "--detach", "v0.5.11"),
        LEFT_OUT,
        nox("patches v0.5.11 --out dist/graphs-0.5.11.patch", ".patch: 2 patches for v0.5.11"),
        Step("cd ~/sglang && git apply --check ~/queue/dist/graphs-0.5.11.patch", ""),
        Step("cd ~/sglang && git apply ~/queue/dist/graphs-0.5.11.patch", ""),
        is_so(lambda world: "added_step" in (world.sglang / NEW).read_text()),
        lambda world: fakes.git(world.sglang, "clean", "-fdq"),
        lambda world: fakes.git(world.sglang, "switch", "-fq", "--detach", "v0.5.9"),
        Step("cd ~/sglang && ~/queue/scripts/nox backport --onto . …", "made", put={"…": "mine"}),
        is_so(lambda world: "mine" in fakes.git(world.sglang, "branch")),
    ],
    "pull requests": [
        nox(f"{ONTO} origin/main --pull-requests", "prefill-graph/steps-count-once-more made"),
        nox(
            f"{ONTO} v0.5.23 --pull-requests breakable/keep-break-tensors",
            "prefill-graph/steps-count-once-more is there already",
            **{"breakable/keep-break-tensors": "steps/count-once-more"},
        ),
    ],
    "the front page": [
        nox(
            "build v0.5.12.post1 --python 3.12",
            f"pip install --force-reinstall --no-deps {WHEEL.format('0.5.12.post1')}",
        ),
    ],
    "a wheel": [
        nox(
            "build v0.5.11 --python 3.12",
            "into an empty environment: `uv pip install --exclude-newer 2030-01-05"
            f" --prerelease=allow {WHEEL.format('0.5.11')}",
        ),
        Step(
            f"pip install --force-reinstall --no-deps {WHEEL.format('0.5.11')}",
            f"Successfully installed sglang-0.5.11+{fakes.LABEL}",
        ),
        lambda world: shutil.rmtree(world.site),
        Step(
            "uv pip install --exclude-newer 2026-05-09 --prerelease=allow"
            f" {WHEEL.format('0.5.11')}",
            f"+ sglang==0.5.11+{fakes.LABEL}",
        ),
        nox("build v0.5.9", f"dist/sglang-{OWN}-py3-none-any.whl: version {OWN}"),
    ],
    "a page of links": [
        nox("build v0.5.9 --release", f"dist/release-{RELEASE}: 1 wheel, 1 patch file"),
        nox("build --release", f"dist/release-{RELEASE}: 4 wheels, 4 patch files"),
        Step(
            "python -m http.server --directory dist/release-2",
            "",
            put={"python": "timeout 60 python", "release-2": "release-2 18573 &>/dev/null &"},
        ),
        Step(
            "pip install --find-links http://localhost:8000/index.html sglang==0.5.9+pcg.2",
            "Successfully installed sglang-0.5.9+pcg.2",
            put={"8000": "18573"},
        ),
    ],
    "from nothing": [
        Step("uv venv --python 3.12", "Creating virtual environment", put={"3.12": sys.executable}),
        Step(
            "uv pip install --exclude-newer 2026-05-09 --prerelease=allow sglang==0.5.11",
            "+ sglang==0.5.11",
            put={"sglang==0.5.11": f"../../wheels/sglang-0.5.11-{BUILT}.whl"},
        ),
        see_the_site,
        Step(
            "uvx --from git+REPOSITORY patchqueue install --python .venv/bin/python",
            "2 patches, 2 files changed",
        ),
    ],
    "in place": [
        nox("install --check", "nothing was written"),
        nox("install", "2 patches, 2 files changed"),
        nox("uninstall", "2 files restored"),
        nox("install --discard", "2 patches, 2 files changed"),
        Step("python -m sglang.srt.prefill_graph", f"queue release {RELEASE}, 2 patches"),
        Step("python -m sglang.srt.prefill_graph --json", '"tree"'),
        nox("uninstall --site-packages DIR", "2 files restored", **SITE),
        nox("install --site-packages DIR", "2 patches, 2 files changed", **SITE),
        Step(
            "sed 's|  python/|  |' sglang/srt/prefill_graph/tree.sha256 | sha256sum --check"
            " --quiet",
            "",
            "site",
        ),
        Step("python sglang/srt/prefill_graph --verify", PATCHED, "site"),
        Step("python -m sglang.srt.prefill_graph --verify", PATCHED),
        nox("uninstall --site-packages DIR", "2 files restored", **SITE),
        Step(
            "scripts/nox patches v0.5.15.post1 --without memory-saver/pause-index-keys --without"
            " moe/return-routed-experts-of-own-rank",
            "1 patch for v0.5.9, 1 file changed",
            put={
                "v0.5.15.post1": "v0.5.9",
                "memory-saver/pause-index-keys": "steps/name-the-cut",
                " --without moe/return-routed-experts-of-own-rank": "",
            },
        ),
    ],
}


@pytest.mark.parametrize("story", RUN)
def test_commands_run_as_they_stand(world, story):
    for step in RUN[story]:
        if isinstance(step, Step):
            said = world.run(step.typed(), world.home / step.where)
            assert step.says in " ".join(said.split()), f"{step.typed()}\n{said}"
        else:
            step(world)


def test_the_last_line_of_an_image_sees_another_sglang(world):
    """A later step may install one that Python finds first: the build has to end."""
    world.run("scripts/nox install --site-packages ~/site")
    other = fakes.install(world.home / "other", fakes.release_of("0.5.11"), "0.5.11")
    (line,) = [one.command for one in COMMANDS if re.match("RUN python .*--verify", one.command)]
    typed = line.replace("/sgl-workspace/sglang/python", str(world.site)).split()[2:]
    ask = shlex.join([sys.executable, *typed])
    world.run(f"PYTHONPATH={world.site} {ask}")
    world.run(f"PYTHONPATH={other}:{world.site} {ask}", code=1)


def test_the_commands_of_the_dockerfile_patch_an_image(world):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = re.findall(r"(?m)^RUN (?:--\S+ +)*(.+)", text)
    there = {"/queue/": f"{world.queue}/", "/sgl-workspace/sglang/python": str(world.site)}
    for old, new in there.items():
        steps = [step.replace(old, new) for step in steps]
    said = [world.run(step, world.home) for step in steps]
    assert "2 patches, 2 files changed" in said[0] and PATCHED in said[1]
    world.run(f"rm {world.site}/{BREAKS.partition('python/')[2]}")
    world.run(steps[1], code=1)


def test_renovate_finds_a_wheel_of_the_queue_and_its_tags():
    (manager,) = json.loads((ROOT / "docs/renovate.json").read_text())["customManagers"]
    (pattern,) = manager["matchStrings"]
    wanted = f"sglang[all]==0.5.12.post1+{fakes.LABEL}"
    found = re.search(pattern.replace("(?<", "(?P<"), wanted)
    version = manager["extractVersionTemplate"].replace("(?<", "(?P<")
    assert found and re.match(version, backport.TAG)["version"] == found["currentValue"]


def test_the_new_user_types_the_commands_of_the_page():
    shown = [one.command for one in pages.shown(ROOT / "docs/install.md")]
    begins = shown.index("uv venv --python 3.12")
    listed = fakes.run(str(ROOT / ".ci/new-user"), "--list").stdout.splitlines()
    typed = [line.replace(f"git+file://{ROOT}", "git+REPOSITORY") for line in listed]
    assert typed[0] == "pip install uv" and len(typed) == 4
    assert [line.replace(" --no-deps", "") for line in typed[1:]] == shown[begins : begins + 3]


CALLS = sorted({shown.command for shown in COMMANDS if pages.sessions(shown.command)[0]})
# what a call of a script of tests/gpu is: the script, and its words up to the shell's
GPU_CALL = re.compile(r"tests/gpu/(\w+\.py)((?: (?!&)[^;]+?)*)(?=;| &|$)")
GPU_CALLS = sorted({found for shown in COMMANDS for found in GPU_CALL.findall(shown.command)})


def steps() -> Iterator[str]:
    return (step.command for story in RUN.values() for step in story if isinstance(step, Step))


# Commands of blocks that are neither run nor checked, by their beginning, and why.
UNRUN = {
    r"(FROM|COPY|RUN|docker) ": "no test has Docker; the commands of the Dockerfile are run",
    r".*tests/gpu/": "it needs a GPU; the words of the script are checked",
    r"scripts/nox bundle ": "it fetches gigabytes; its words are checked",
    r"scripts/nox (lint|test)\b": "it needs packages of its own, and runs for minutes",
    r"scripts/nox (gpu|sweep) ": "it needs a GPU; its words are checked",
    r"scripts/nox status --merge ": "it takes what a GPU host wrote",
    r"scripts/nox pin v0.5.24 --lock": "it asks the index for 200 packages",
    r"python -m sglang.launch_server ": "it needs a GPU and a model",
}


def test_every_command_of_a_block_is_run_or_checked_or_has_a_reason():
    assert {*steps()} <= {shown.command for shown in COMMANDS}, "and no other is run here"
    shown = {each.command for each in COMMANDS if not each.named}
    left = sorted(shown - {*steps()})
    reasons = {command: [one for one in UNRUN if re.match(one, command)] for command in left}
    assert dict.fromkeys(left, 1) == {one: len(found) for one, found in reasons.items()}
    assert {reason for found in reasons.values() for reason in found} == UNRUN.keys()


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
    """Their parser complains of a wrong word behind them alone, or of a folder not there."""
    command = [sys.executable, str(ROOT / "tests/gpu" / script), *shlex.split(words)]
    done = fakes.run(*command, "--no-such-word", cwd=tmp_path)
    said = done.stderr.strip().splitlines()[-1]
    wanted = "there is no folder" if "--peer" in words else "arguments: --no-such-word"
    assert done.returncode == 2 and wanted in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_wheels_and_days_on_a_page_are_those_of_a_build(page):
    """A wheel that is named is one that `build` makes; a day with it is its release's."""
    known, text, days = pins.load(ROOT), page.read_text(encoding="utf-8"), set()
    for name in re.findall(r"sglang-[\w.+-]+\.whl", text):
        _, version, _, tags = parse_wheel_filename(name)
        pin = known.find(version.public)
        days.add(pin.resolve_as_of.isoformat())
        assert version.local == f"{LABEL}.{RELEASE}"
        assert tags in [parse_wheel_filename(wheel.file)[3] for wheel in pin.wheels]
    assert set(re.findall(r"--exclude-newer (\S+)", text)) <= days


def test_topics_and_releases_in_commands_are_there():
    """Of the real queue: the small clone has others."""
    known, (queue, _) = pins.load(ROOT), series.read(ROOT)
    topics = {name.partition("/")[0] for name in queue.patches}
    pinned = {str(pin.version) for pin in known.all}
    for command in {shown.command for shown in COMMANDS}:
        names, words = pages.sessions(command)
        named = [word for word in words if re.fullmatch(r"v?0\.\d+\.\d+(\.post\d+)?", word)]
        unknown = {word.removeprefix("v") for word in named} - pinned
        assert not names or unknown <= ({*LATER} if names[0] in TO_COME else set()), command
        assert "--test" not in words or set(words) & topics, command
