"""The commands that hand the queue on: build, backport, patches."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
import time
from pathlib import Path

from ..files import atomic
from ..handover import backport, pull_requests, release
from ..outcome import Outcome, counted
from ..upstream import pins as pinning
from ..upstream.pins import Pin
from ..wheels import Target, build, local_version
from . import terminal
from .terminal import ERR, FROM, ONLY, OUT, WITHOUT, Command, chosen_releases, flag, option, shown

MB = 10**6
DIST = Path("dist")
PULL_REQUESTS = DIST / "pull-requests"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def _build(options: argparse.Namespace) -> int:
    if options.release:
        return _release(options)
    target = Target(options.python or HERE, options.machine or platform.machine())
    for pin in chosen_releases(options, pinning.load(options.root)):
        started = time.monotonic()
        if not options.python and len(pin.wheels) > 1:
            ERR.print(f"for Python {HERE}, which runs this; --python names another", style="dim")
        built = build(options.root, pin, target, options.origin, options.root / DIST, options.only)
        wheel = shlex.quote(shown(built.path))
        OUT.print(
            f"{shown(built.path)}: version {built.version},"
            f" {time.monotonic() - started:.1f} s\nfrom {built.origin}\nsha256 {built.sha256}\n"
            f"tree {built.record['tree']['after']}\n"
            f"files: {len(built.changes.added)} added, {len(built.changes.changed)} changed,"
            f" {len(built.changes.removed)} removed"
        )
        if not options.only and pin.patched not in ("", built.record["tree"]["after"]):
            OUT.print("note: this clone has edits: upstream/pins.toml pins another tree")
        _show_install(pin, wheel)
    return 0


def _show_install(pin: Pin, wheel: str) -> None:
    """How the wheel is installed."""
    OUT.print(
        f"into an empty environment: `uv pip install --exclude-newer {pin.resolve_as_of}"
        f" --prerelease=allow {wheel}`"
    )
    # without --force-reinstall pip keeps an earlier wheel of the same version
    OUT.print(
        f"next: `pip install --force-reinstall --no-deps {wheel}`, over an installed sglang"
        f" {pin.version}"
    )


def _release(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = chosen_releases(options, pins, pins.all)
    started = time.monotonic()
    folder = release.make(options.root, chosen)
    wheels = counted(sum(len(pin.wheels) for pin in chosen), "wheel")
    size = sum(file.stat().st_size for file in folder.iterdir()) / MB
    OUT.print(
        f"{shown(folder)}: {wheels}, {counted(len(chosen), 'patch file')}, {size:.1f} MB,"
        f" {time.monotonic() - started:.1f} s"
    )
    version = local_version(chosen[0])
    OUT.print(f"next: `pip install --find-links {shown(folder)} sglang=={version}`")
    return 0


def _backport(options: argparse.Namespace) -> int:
    is_branch = options.pull_requests is None
    given = {"--onto": options.onto, "BRANCH": options.branch or not is_branch}
    if missing := [name for name, value in given.items() if not value]:
        options.parser.error(f"the following arguments are required: {', '.join(missing)}")
    if not is_branch:
        return _pull_requests(options)
    onto = str(options.onto)
    branch = backport.backport(
        options.root,
        onto,
        options.branch,
        options.base,
        options.release,
        [*options.without, *(() if options.report else backport.REPORT)],
        options.only,
        options.tests,
    )
    edited = branch.edits.paths
    fork = f" with edits of others in {counted(len(edited), 'file')}" if edited else ""
    OUT.print(f"{options.base} is {branch.pin.tag}{fork}, at {branch.base[:12]}")
    for commit, subject in zip(branch.commits, branch.subjects):
        OUT.print(f"  {commit[:12]} {subject}")
    OUT.print(f"{onto}: {branch.name} {_done(branch.outcome)}, at {branch.commits[-1]}")
    OUT.print(f"tree {branch.tree}")
    OUT.print(f"next: `git -C {shlex.quote(onto)} switch {branch.name}`")
    return 0


def _patches(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    options.releases = [options.release] if options.release else []
    (pin,) = chosen_releases(options, pins)
    name = f"sglang-{local_version(pin, options.only)}.patch"
    out = options.out or options.root / DIST / name
    console = ERR if out == atomic.OUTPUT else OUT
    made = backport.write_patch(options.root, pin, options.base, out, options.only, options.without)
    console.print(
        f"{shown(made.path)}: {counted(made.patches, 'patch', 'patches')} for {pin.tag},"
        f" {counted(made.changed, 'file')} changed, {made.added} added"
    )
    if made.edited:
        others = f"where others edited {counted(made.edited, 'file')}"
        console.print(f"it is for {options.base}, {others}")
    console.print(f"sha256 {made.sha256}")
    console.print(f"tree {made.tree}")
    file = shlex.quote(str(made.path.absolute()))
    console.print(
        f"next: `git apply {file}` in the root of sglang's own repository; elsewhere `patch -p1 <"
        f" {file}`"
    )
    return 0


def _pull_requests(options: argparse.Namespace) -> int:
    words = [*options.pull_requests, *([options.branch] if options.branch else [])]
    pins, onto = pinning.load(options.root), str(options.onto)
    made = pull_requests.make(options.root, pins, onto, words, options.base)
    other = f"is no pinned release: the patches of {made.pin.tag} were applied to it"
    OUT.print(
        f"{options.base}, at {made.base[:12]}, {f'is {made.pin.tag}' if made.exact else other}"
    )
    for patch in made.merged:
        OUT.print(f"  {patch}: merged upstream, left out")
    for request in made.requests:
        body = pull_requests.write(request, options.root / PULL_REQUESTS)
        OUT.print(
            f"{onto}: {request.branch} {_done(request.outcome)}, at {request.tip[:12]};"
            f" {shown(body)}"
        )
        for part in request.parts[:-1]:
            OUT.print(f"  {part.title} (to stand on)")
        OUT.print(f"  {request.draft.title}")
        if not request.draft.text.body:
            text = f"{pull_requests.FOLDER}/{request.draft.name}/{pull_requests.NAME}"
            OUT.print(f"  warning: {request.draft.name} has no text: write {text}")
    OUT.print(
        f"next: `git -C {shlex.quote(onto)} log -p"
        f" {made.base[:12]}..{made.requests[0].branch}`;"
        " read the texts, run the tests and upstream's pre-commit, and add upstream's checklist"
    )
    return 0


def _done(outcome: Outcome) -> str:
    return "is there already" if outcome is Outcome.ALREADY_APPLIED else "made"


COMMANDS = (
    Command(
        "build",
        _build,
        "write a release's wheel with the queue on it to dist/",
        "v0.5.12.post1 --python 3.12",
        (
            terminal.releases(f"{terminal.DEFAULT}; with --release, every one"),
            FROM,
            option(
                "--python",
                "for this Python, as 3.12 (default: the one that runs this)",
                type=terminal.python,
            ),
            option(
                "--machine",
                "for this machine, x86_64 or aarch64 (default: this host's)",
                type=terminal.machine,
            ),
            (
                ONLY,
                flag(
                    "--release",
                    "make the files of a release of the queue instead, in dist/release-N/: wheels,"
                    " patch files, sums",
                ),
            ),
        ),
    ),
    Command(
        "backport",
        _backport,
        "make a release branch in a git checkout of sglang, with a commit for each patch",
        "--onto ~/sglang --base v0.5.9 graphs-on-0.5.9",
        (
            option(
                "branch BRANCH",
                "the new branch's name, as release/0.5.9-graphs; an existing branch is never moved",
                nargs="?",
            ),
            option("--onto REPO", "a git checkout or repository of sglang", type=terminal.path),
            option(
                "--base COMMIT",
                "begin the branch here: a tag, branch or hash (default: the checkout's HEAD)",
                default="HEAD",
            ),
            option(
                "--release RELEASE",
                "the release that a fork is made of, where its tags do not say",
                default="",
            ),
            WITHOUT,
            ONLY,
            flag("--tests", "also the patches' tests, in a last commit"),
            (
                flag(
                    "--report",
                    "also the patches that report on the graph: its verdict, counts of prefills,"
                    " and which tree a server runs",
                ),
                option(
                    "--pull-requests PATCH",
                    "make a branch and a text for the pull request of each patch that is Pending"
                    " instead; PATCH is one of them, as breakable/keep-break-tensors, or a topic,"
                    f" as breakable (default: every one). The texts go to {PULL_REQUESTS}/",
                    nargs="*",
                ),
            ),
        ),
        "Make a release branch in a git checkout of sglang, with a commit for each patch. The"
        " files, index and HEAD of the checkout are left alone.",
    ),
    Command(
        "patches",
        _patches,
        "write overlay and patches as one file, for `git apply` and `patch -p1`",
        "v0.5.15.post1 --out sglang-0.5.15.post1.patch",
        (
            option("release RELEASE", f"v0.5.9 or 0.5.9 (default: {terminal.DEFAULT})", nargs="?"),
            option(
                "--out FILE",
                f"the file to write, - to print it (default: {DIST}/sglang-RELEASE.patch)",
                type=terminal.file,
            ),
            ONLY,
            WITHOUT,
            option(
                "--base PATH",
                "write it for this tree: a checkout or folder with the release and edits of others",
                type=terminal.path,
            ),
        ),
    ),
)
