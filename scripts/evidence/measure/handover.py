"""Measure what is handed on as commits, on every pin: the same tree and the same hashes, whichever
way they went.

On a checkout made of each pinned wheel: the release branch against what apply makes; its mails
through `git am`; its commits read back against patches/; the pull requests' mails through `git am`.
Nothing of the project is written.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from patchqueue.files.tree import hash_listing
from patchqueue.handover import backport, export
from patchqueue.handover.repository import Repository, open_repository
from patchqueue.laying.replay import replay
from patchqueue.laying.selection import Selection
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue.patchfile import parse_diff
from patchqueue.queue.series import Queue
from patchqueue.upstream import pins, source

from .copies import ROOT

BRANCH = "release/graphs"
BEFORE = "2020-01-01T00:00:00Z"  # when the checkout's own commit says it was made


def measure(queue: Queue, everything: pins.Pins, pin: pins.Pin, space: Path) -> dict[str, object]:
    """What came out on one pin; a bool is a claim that must be true."""
    checkout = make_checkout(source.fetch(pin, None), space / "checkout")
    before = state(checkout)
    started = time.monotonic()
    made = backport.backport(ROOT, everything, str(checkout), BRANCH, "HEAD", space / "mails")
    seconds = time.monotonic() - started
    repository = open_repository(str(checkout))
    tip = made.commits[-1]
    patches = queue.select(pin.version)
    names, same = read_back(repository, queue, made, space)
    found: dict[str, object] = {
        "commits": len(made.commits),
        "backport_s": round(seconds, 1),
        "tree_is_applys": hash_listing(repository.listing(tip, "python"))
        == Selection(queue, pin).tree_after(source.fetch(pin, None)),
        "am_tree": am(checkout, space / "am", made.base, sorted((space / "mails").iterdir()))
        == (tree(repository, tip), tip),
        "read_back": names == [patch.name for patch in patches],
        "of_these_bytes": same,
        "again": backport.backport(ROOT, everything, str(checkout), BRANCH, "HEAD").outcome
        is Outcome.ALREADY_APPLIED,
    }
    try:
        done = export.export(ROOT, everything, str(checkout), [], "HEAD")
    except Refused as refusal:
        found["pull_requests"] = refusal.problems[0].name
    else:
        found["pull_requests"] = len(done.requests)
        for request in done.requests:
            files = export.write(request, {}, space / "out")
            name = request.name.replace("/", "-")
            found[f"am_{name}"] = am(checkout, space / f"am-{name}", made.base, files) == (
                tree(repository, request.tip),
                request.tip,
            )
    return found | {"untouched": state(checkout) == before}


def make_checkout(pristine: source.Source, folder: Path) -> Path:
    """The release laid out as in git: one commit, tagged, by its upstream."""
    folder.mkdir()
    pristine.unpack(folder)
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "-A", "-f"),
        ("commit", "-q", "-m", pristine.pin.tag),
        ("tag", pristine.pin.tag),
    ):
        git(folder, *words)
    return folder


def am(checkout: Path, clone: Path, base: str, mails: Sequence[Path]) -> tuple[str, str]:
    """The tree and the commit that `git am` makes of the mails, in a clone, as the same person at
    the same time."""
    git(checkout.parent, "clone", "-q", "--shared", "--no-checkout", str(checkout), str(clone))
    git(clone, "checkout", "-q", "--detach", base)
    who = open_repository(str(checkout)).person()
    person = ("-c", f"user.name={who.name}", "-c", f"user.email={who.email}")
    # without the second word git drops a title's [Fix]
    words = ("am", "--keep-non-patch", "-q", "--committer-date-is-author-date")
    git(clone, *person, *words, *map(str, mails))
    return git(clone, "rev-parse", "HEAD^{tree}").strip(), git(clone, "rev-parse", "HEAD").strip()


def read_back(
    repository: Repository, queue: Queue, made: backport.Branch, space: Path
) -> tuple[list[str], int]:
    """The patches that the branch's commits are, by their trailers and by what they do; how many
    are byte for byte the text that the release gets.

    The diff is GNU diff's, as quilt writes it. Where a patch has an added line elsewhere among
    equal ones, its diff is another; laid on the same files at its exact lines, it has to make the
    same ones.
    """
    names, same = [], 0
    for parent, commit in zip((made.base, *made.commits), made.commits):
        trailer = "--format=%(trailers:key=Queue-Patch,valueonly,separator=)"
        name = repository.git("show", "--no-patch", trailer, commit).decode().strip()
        patch = queue.at(name, made.pin.version)
        read = _diff(repository, parent, commit, space)
        same += read == patch.diff
        by_diff, by_patch = (
            replay([each], {}, partial(repository.read, parent), name)
            for each in (replace(patch, files=parse_diff(read)), patch)
        )
        right = by_diff.files == by_patch.files and not by_diff.problems
        names.append(name if right else f"{name} (differs)")
    return names, same


def _diff(repository: Repository, parent: str, commit: str, space: Path) -> str:
    """What a commit changes in files that were there."""
    words = ("diff-tree", "-r", "-z", "--name-only", "--diff-filter=M", parent, commit)
    changed = repository.git(*words).decode().split("\0")[:-1]
    return b"".join(
        gnu_diff(path, repository.read(parent, path), repository.read(commit, path), space)
        for path in sorted(changed)
    ).decode()


def gnu_diff(path: str, before: bytes | None, after: bytes | None, space: Path) -> bytes:
    for name, content in (("before", before), ("after", after)):
        (space / name).write_bytes(content or b"")
    labels = ["--label", f"a/{path}", "--label", f"b/{path}"]
    return subprocess.run(
        ["diff", "-U3", *labels, str(space / "before"), str(space / "after")], capture_output=True
    ).stdout


def tree(repository: Repository, commit: str) -> str:
    return repository.git("rev-parse", f"{commit}^{{tree}}").decode().strip()


def state(checkout: Path) -> tuple[str, bytes, list[tuple[str, int]]]:
    """HEAD, the index, and every file outside of .git with the time it was written."""
    files = sorted(
        (str(path), path.stat().st_mtime_ns)
        for path in checkout.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(checkout).parts[:1]
    )
    return (checkout / ".git/HEAD").read_text(), (checkout / ".git/index").read_bytes(), files


def git(folder: Path, *words: str) -> str:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    } | {"GIT_COMMITTER_DATE": BEFORE, "GIT_AUTHOR_DATE": BEFORE}
    if words[0] == "commit":
        words = ("-c", "user.name=Upstream", "-c", "user.email=upstream@example.org", *words)
    return subprocess.run(
        ["git", "-c", "gc.auto=0", "-c", "core.autocrlf=false", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env=variables,
    ).stdout
