"""The commands that hand the queue on: as commits, as patch files, and as wheels."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path
from typing import Any

from ..files import atomic
from ..handover import backport, export, onefile, prbody, release
from ..hint import counted
from ..laying.apply import load_queue
from ..outcome import Outcome
from ..upstream import pins as pinning
from ..wheels.build import local_version
from . import idle, paths, releases
from .entry import ERR, OUT

MB = 10**6
DIST = Path("dist")
OUTPUT = DIST / "pull-requests"


def add(commands: Any) -> None:
    """Add this module's commands to the parser's."""
    text = "make a release branch in a git checkout of sglang, with a commit for each patch"
    made = _command(commands, "backport", _backport, text)
    text = "the new branch's name, as release/0.5.9-graphs; an existing branch is never moved"
    made.add_argument("branch", metavar="BRANCH", help=text)
    text = "the release that a fork is made of, where its tags do not say"
    made.add_argument("--release", default="", metavar="VERSION", help=text)
    text = "leave this patch out, as prefill-graph/log-tree, with the files that it alone needs"
    made.add_argument("--without", action="append", default=[], metavar="PATCH", help=text)
    text = "end each message with a Signed-off-by of who commits"
    made.add_argument("--signoff", action="store_true", help=text)
    text = "write the commits as mails for `git am` as well"
    made.add_argument("--mails", type=paths.path, metavar="DIR", help=text)
    text = "write overlay and patches as one file, for `git apply` and `patch -p1`"
    one: argparse.ArgumentParser = commands.add_parser("patches", help=text)
    one.set_defaults(run=_patches)
    one.add_argument(
        "revision",
        nargs="?",
        default="",
        metavar="VERSION",
        help=f"v0.5.9 or 0.5.9 (default: {paths.DEFAULT})",
    )
    text = f"the file to write, - to print it (default: {DIST}/sglang-VERSION.patch)"
    one.add_argument("--out", type=paths.file, metavar="FILE", help=text)
    text = "write it for this tree: a checkout or folder with the release and edits of others"
    one.add_argument("--base", type=paths.path, metavar="PATH", help=text)
    paths.add_origin(one)

    _add_export(commands)
    _add_release(commands)


def _add_release(commands: Any) -> None:
    text = "make the files of a release of the queue in dist/release-N/: wheels, patch files, sums"
    made = releases.command(commands, "release", _release, text, "every pinned release")
    for name, kind, what in (
        ("python", releases.python, "Python, as 3.12"),
        ("machine", releases.machine, "machine, x86_64 or aarch64"),
    ):
        made.add_argument(
            f"--{name}",
            type=kind,
            action="append",
            default=[],
            help=f"only wheels for this {what}; more than once for several (default: all)",
        )


def _add_export(commands: Any) -> None:
    text = "make branches and texts for pull requests from the patches that are Pending"
    sent = _command(commands, "export", _export, text)
    text = (
        "a patch, as breakable/keep-break-tensors, or all of a topic, as breakable (default: every"
        " patch)"
    )
    sent.add_argument("patches", nargs="*", metavar="PATCH", help=text)
    text = "make one branch of all patches of a topic, in place of one for each"
    sent.add_argument("--together", action="store_true", help=text)
    text = f"write each one's title and text here (default: {OUTPUT}/)"
    sent.add_argument("--out", type=paths.path, default=OUTPUT, metavar="DIR", help=text)


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=(
            f"{text[0].upper()}{text[1:]}. The files, index and HEAD of the checkout are left"
            " alone."
        ),
    )
    added.set_defaults(run=run)
    added.add_argument(
        "--onto",
        type=paths.place,
        required=True,
        metavar="REPO",
        help="a git checkout or repository of sglang",
    )
    added.add_argument(
        "--base",
        default="HEAD",
        metavar="COMMIT",
        help="begin the branch here: a tag, branch or hash (default: the checkout's HEAD)",
    )
    return added


def _backport(options: argparse.Namespace) -> int:
    made = backport.backport(
        options.root,
        pinning.load(options.root),
        options.onto,
        options.branch,
        options.base,
        options.mails,
        backport.Wishes(options.release, tuple(options.without), options.signoff),
    )
    edited = made.edits.paths
    fork = f" with edits of others in {counted(len(edited), 'file')}" if edited else ""
    OUT.print(f"{options.base} is {made.pin.tag}{fork}, at {made.base[:12]}")
    for commit, subject in zip(made.commits, made.subjects):
        OUT.print(f"  {commit[:12]} {subject}")
    OUT.print(f"{options.onto}: {made.name} {_done(made.outcome)}, at {made.commits[-1]}")
    OUT.print(f"tree {made.tree}")
    if made.mails:
        OUT.print(f"{options.mails}: {counted(len(made.mails), 'mail')} for `git am`")
    OUT.print(f"next: `git -C {shlex.quote(options.onto)} switch {made.name}`")
    return 0


def _patches(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    pin = pins.find(options.revision) if options.revision else pins.default
    if options.base:
        idle.refuse(options, "with --base, which is the tree", "--from")
    out = options.out or DIST / f"sglang-{local_version(pin)}.patch"
    tell = ERR if atomic.is_output(out) else OUT
    made = onefile.write(options.root, pin, options.origin, options.base, out)
    tell.print(
        f"{paths.shown(made.path)}: {counted(made.patches, 'patch', 'patches')} for {pin.tag},"
        f" {counted(made.changed, 'file')} changed, {made.added} added"
    )
    if made.edited:
        tell.print(f"it is for {options.base}, where others edited {counted(made.edited, 'file')}")
    tell.print(f"sha256 {made.sha256}")
    tell.print(f"tree {made.tree}")
    file = shlex.quote(str(made.path.absolute()))
    tell.print(f"next: `git apply {file}` in the root of a checkout, or `patch -p1 < {file}`")
    return 0


def _release(options: argparse.Namespace) -> int:
    pins = pinning.load(options.root)
    chosen = releases.chosen(options, pins, pins.all)
    started = time.monotonic()
    made = release.make(options.root, release.Choice(chosen, options.python, options.machine))
    folder = releases.relative(made.folder, options.root)
    releases.tell(
        f"{folder}: {counted(made.wheels, 'wheel')}, {counted(len(made.versions), 'patch file')},"
        f" {made.bytes / MB:.1f} MB, {time.monotonic() - started:.1f} s"
    )
    releases.tell(f"next: `pip install --find-links {folder} sglang=={made.versions[0]}`")
    return 0


def _export(options: argparse.Namespace) -> int:
    queue = load_queue(options.root)
    done = export.export(
        options.root,
        pinning.load(options.root),
        options.onto,
        options.patches,
        options.base,
        options.together,
    )
    _show_base(done, options.base)
    for request in done.requests:
        texts = {
            "title.txt": prbody.title(request) + "\n",
            "body.md": prbody.body(queue, done, request),
        }
        written = export.write(request, texts, options.out)
        OUT.print(
            f"{options.onto}: {request.branch} {_done(request.outcome)}, at {request.tip[:12]};"
            f" {paths.shown(written[1])}"
        )
        _show_parts(request)
    first = done.requests[0]
    OUT.print(
        f"next: `git -C {shlex.quote(options.onto)} log -p {done.base[:12]}..{first.branch}`;"
        " read the texts, and run the tests and upstream's pre-commit, before you push"
    )
    return 0


def _show_base(done: export.Exported, base: str) -> None:
    other = f"is no pinned release: the patches of {done.pin.tag} were laid on it"
    what = f"is {done.pin.tag}" if done.exact else other
    OUT.print(f"{base}, at {done.base[:12]}, {what}")
    for patch in done.merged:
        OUT.print(f"  {patch.removesuffix('.patch')}: merged upstream, left out")
    if done.template is None:
        OUT.print(f"  warning: it has no {export.TEMPLATE}: fill in upstream's own checklist")


def _show_parts(request: export.PullRequest) -> None:
    """What a pull request is made of, and what its sender has to know."""
    for part in request.parts:
        about = "" if part.own else " (to stand on)"
        OUT.print(f"  {part.subject}{about}")
        for theirs, ours in part.renamed.items():
            OUT.print(f"  {theirs} is upstream's: our cases are in {ours}")
        if part.own and part.patch not in request.texts:
            OUT.print(f"  warning: {part.patch} has no text: the header speaks in its place")
    OUT.print(f"  runs of it are known by {request.hash}")


def _done(outcome: Outcome) -> str:
    return "is there already" if outcome is Outcome.ALREADY_APPLIED else "made"
