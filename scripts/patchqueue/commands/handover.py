"""The commands that hand the queue on: backport, patches, rebase."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.version import Version

from ..applying.apply import load_queue
from ..environments.testing import has_environment
from ..files import atomic
from ..handover import backport, pull_requests, rebase
from ..handover.forecast import MERGED_BY_GIT, Forecast, forecast
from ..handover.rebase import Progress
from ..outcome import Outcome, Refused, counted, to_type
from ..upstream import pins as pinning
from ..upstream.pins import Pins
from ..upstream.release import find, newer
from ..wheels import local_version
from . import terminal
from .terminal import ERR, ONLY, OUT, WITHOUT, Command, flag, option, show_rows, shown

PULL_REQUESTS = terminal.DIST / "pull-requests"

DONE = {Outcome.ALREADY_APPLIED: "is there already", Outcome.APPLIED: "made"}


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
    OUT.print(f"{onto}: {branch.name} {DONE[branch.outcome]}, at {branch.commits[-1]}")
    OUT.print(f"tree {branch.tree}")
    OUT.print(f"next: `git -C {shlex.quote(onto)} switch {branch.name}`")
    return 0


def _patches(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    options.releases = [options.release] if options.release else []
    (pin,) = terminal.chosen_releases(options, pins)
    name = f"sglang-{local_version(pin, options.only)}.patch"
    out = options.out or options.root / terminal.DIST / name
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
            f"{onto}: {request.branch} {DONE[request.outcome]}, at {request.tip[:12]};"
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


KINDS = (
    (Outcome.APPLIED, "as they are"),
    (Outcome.NEEDS_REFRESH, "to refresh"),
    (Outcome.MERGED_UPSTREAM, "merged upstream"),
    (Outcome.CONFLICT, "in conflict"),
    (Outcome.NOT_SELECTED, "left out"),  # only where there are such
)

DESCRIPTION = """Say what the queue does on a release: each patch applies, needs a refresh, is
merged upstream, or conflicts. The first conflict is laid out in work/rebase-RELEASE/, a git
repository. Nothing is written to the queue yet. Solve the conflict there; then --continue writes
the variants and guards, and lays out the next one."""


def _rebase(options: argparse.Namespace) -> int:
    root, pins = options.root, pinning.load(options.root)
    if options.newer:
        return _show_newer(root, pins)
    if not options.release:
        raise Refused.of("bad-words", "rebase", "which release?", to_type("rebase", "0.5.24"))
    version = pinning.version(options.release)
    if not options.proceed:
        release = find(pins, version, options.origin)
        progress = rebase.begin(root, pins, release, partial(_show_forecast, pins))
        _show_next(root, pins, progress, begun=True)
        return 0
    progress = rebase.proceed(root, pins, version)
    for change in progress.changes:
        OUT.print(f"{change.path}: {change.why}")
    if not progress.changes:
        OUT.print("nothing to write, the queue holds it all")
    _show_next(root, pins, progress)
    return 0


def _show_newer(root: Path, pins: Pins) -> int:
    """Say what the queue does on each release that is newer than the newest pin."""
    versions = newer(pins)
    if not versions:
        OUT.print(f"no release is newer than {pins.all[-1].tag}, the newest pin")
        return 0
    queue = load_queue(root)
    for version in versions:
        _show_forecast(pins, forecast(queue, pins, find(pins, version, None)))
    OUT.print(f"next: {to_type('rebase', versions[0])} carries it there, up to a first conflict")
    return 0


def _show_forecast(pins: Pins, outlook: Forecast) -> None:
    show_rows(
        replace(row, why="see below") if row.outcome is Outcome.CONFLICT else row
        for row in outlook.rows
    )
    names = {row.patch: row.patch.removesuffix(".patch") for row in outlook.rows}
    for row in outlook.rows:
        if row.outcome is Outcome.CONFLICT:
            OUT.print(f"{names[row.patch]}: {row.why}")
    for row in outlook.rows:
        if row.why == MERGED_BY_GIT:
            what = "merged without markers, which is no proof of meaning: read it"
            OUT.print(f"{names[row.patch]}: {what}")
    outcomes = [row.outcome for row in outlook.rows]
    kinds = KINDS if Outcome.NOT_SELECTED in outcomes else KINDS[:-1]
    counts = ", ".join(f"{outcomes.count(outcome)} {what}" for outcome, what in kinds)
    own = "which is pinned, with its own patches and those" if pins.of(outlook.version) else ""
    tried = f"{own or 'with the patches'} of {outlook.nearest.tag}"
    OUT.print(f"sglang {outlook.version}, {tried}: {counts}")


def _show_next(root: Path, pins: Pins, progress: Progress, begun: bool = False) -> None:
    """What is to be done now, and the command to type. begun: a release is begun now."""
    version, row = progress.found.version, progress.found.conflict
    if row is not None:
        _show_conflict(root, progress, row.patch, begun)
        return
    if begun:
        write = to_type("rebase", version, "--continue")
        OUT.print(f"No patch conflicts: {write} writes the variants and guards.")
    else:
        OUT.print(f"No conflict is left on {version}. Next: {_after(root, pins, version)}.")


def _show_conflict(root: Path, progress: Progress, patch: str, begun: bool) -> None:
    tag, version = progress.found.nearest.tag, progress.found.version
    name = patch.removesuffix(".patch")
    folder = os.path.relpath(progress.folder or root, root)
    first, following = f"{folder} shows the first conflict", f"Next conflict in {folder}"
    lines = [f"\n{first if begun else following}, {name}:"]
    for region in progress.regions:
        marked = f"{counted(region.regions, 'region')} between markers"
        what = marked if region.regions else "changed by the patch, and gone in the release"
        lines.append(f"  {region.path}:{region.line}: {what}")
    if not progress.regions:
        made = "`git diff HEAD` there shows what it made of"
        lines.append(f"  git left no markers; {made} patches/{patch}")
    lines += [
        f"There `git diff {tag} v{version} -- FILE` is what upstream did, `git log -p"
        f" {tag}..queue-on-{tag}` what the queue does.",
        f"Edit, then {to_type('rebase', f'{version} --continue')}. A Gap in the patch's header, and"
        " a guard without the release, leave the patch out. To drop all this, delete the folder.",
    ]
    OUT.print("\n".join(lines))


def _after(root: Path, pins: Pins, version: Version) -> str:
    """The commands that a finished rebase leaves to be typed."""
    pin = pins.of(version)
    steps = [] if pin else [to_type("pin", version)]
    # of a pinned one, every release: a text that changed may conflict on others, too
    steps += [to_type("check", *([] if pin else ["--write", f"v{version}"]))]
    steps += [] if pin and has_environment(root, pin) else [to_type("pin", f"v{version}", "--lock")]
    return ", ".join(steps)


COMMANDS = (
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
                f"the file to write, - to print it (default: {terminal.DIST}/sglang-RELEASE.patch)",
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
    Command(
        "rebase",
        _rebase,
        "say what the queue does on another release, and carry it there",
        "0.5.24",
        (
            option("release RELEASE", "a version, as 0.5.24", nargs="?"),
            option(
                "--from PATH",
                "take the release from this wheel, folder of wheels, checkout or unpacked wheel",
                dest="origin",
                type=terminal.path,
            ),
            (
                flag(
                    "--continue",
                    "write what is solved, and go on to the next conflict",
                    dest="proceed",
                ),
                flag(
                    "--newer",
                    "say what the queue does on each release that is newer than the newest pin",
                ),
            ),
        ),
        DESCRIPTION,
    ),
)
