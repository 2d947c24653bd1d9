"""A user's git repository, read and added to without touching what is checked out there.

Trees are written through an index of their own, so that the user's files, index and HEAD stay as
they are; only a new branch appears. git runs as nobody's configuration would have it; the user's is
asked for one thing, who they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..files.run import Failed
from ..files.tree import is_part_of_tree, sha256
from ..outcome import Outcome, Refused, some

LINK, SUBMODULE = "120000", "160000"


@dataclass(frozen=True)
class Commit:
    """A commit to be made. files: path in the tree -> content, for those that it changes or
    adds."""

    message: str
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Repository:
    """A git repository with or without files checked out. path: anywhere in it; shown: as the user
    named it."""

    path: Path
    shown: str

    def git(
        self, *arguments: str, content: bytes | None = None, more: Mapping[str, str] | None = None
    ) -> bytes:
        """git's output. Raises Failed where it ends with another code than 0."""
        variables = run.NO_CONFIGURATION | dict(more or {})
        return run.git(self.path, *arguments, stdin=content or b"", more=variables).stdout

    def _word(
        self, *arguments: str, content: bytes | None = None, more: Mapping[str, str] | None = None
    ) -> str:
        """The same, where it is a hash or a name."""
        return self.git(*arguments, content=content, more=more).decode().strip()

    def _as_user(self, *arguments: str) -> bytes:
        """The same by the user's own configuration."""
        return run.run(run.GIT, *arguments, folder=self.path).stdout

    def person(self) -> tuple[str, str]:
        """(name, mail address) of who commits, as the user's git configuration says. Raises Refused
        where it does not."""
        values: list[str] = []
        for name, example in (("user.name", "Your Name"), ("user.email", "you@example.org")):
            try:
                values.append(self._as_user("config", "--get", name).decode().strip())
            except Failed:
                values.append("")
            if not values[-1]:
                what = f"git has no {name}, and commits need an author"
                step = f'`git config --global {name} "{example}"`'
                raise Refused.of("no-identity", self.shown, what, step)
        return values[0], values[1]

    def refuse_edits(self, base: str) -> None:
        """Raise Refused where the branch begins at HEAD and files that are checked out differ from
        it: it would not have these edits, and who takes what is checked out may mean it with them.
        Who names a commit means that commit."""
        if base != "HEAD" or self.git("rev-parse", "--is-inside-work-tree").strip() != b"true":
            return
        # As the user's own configuration has it: with core.autocrlf what is checked out is not what
        # is committed, and no edit.
        words = ["-c", "core.fsmonitor=false", "--no-optional-locks", "status", "--porcelain", "-z"]
        words += ["--untracked-files=no", "--ignore-submodules=all"]
        found = self._as_user(*words).decode("utf-8", "replace")
        edited = [entry[3:] for entry in found.split("\0") if entry[2:3] == " "]
        if edited:
            what = (
                "has edits that are not committed, and the branch would begin at HEAD, which"
                f" lacks them: {some(edited)}"
            )
            step = (
                f"`git -C {self.shown} stash`, or commit them; or go without them: --base"
                f" {self.commit(base)[:12]}"
            )
            raise Refused.of("edited-checkout", self.shown, what, step)

    def commit(self, name: str) -> str:
        """The commit that `name` (a branch, tag or hash) stands for, as a full hash. Raises Refused
        where there is none."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        try:
            return self._word(*words, f"{name}^{{commit}}")
        except Failed:
            what = f"has no commit {name!r}"
            step = f"`git -C {self.shown} fetch --tags`, or name another: --base COMMIT"
            raise Refused.of("no-commit", self.shown, what, step) from None

    def branch(self, name: str) -> str | None:
        """The commit a branch is at, None where there is no such branch. Raises Refused for what
        cannot name one."""

        what = ""
        is_name = self._holds("check-ref-format", f"refs/heads/{name}") and name != "HEAD"
        if not is_name or name.startswith(("-", "refs/")):
            what = "is no name for a branch"
        elif self._word("for-each-ref", f"refs/tags/{name}"):
            what = "is a tag's name, and git would not know which is meant"
        if what:
            raise Refused.of("bad-branch", repr(name), what, "name one as release/0.5.9-graphs")
        try:
            return self._word("rev-parse", "--verify", "--quiet", f"refs/heads/{name}^{{commit}}")
        except Failed:
            return None

    def _holds(self, *arguments: str) -> bool:
        """Whether git ends a question with the code 0."""
        try:
            self.git(*arguments)
        except Failed:
            return False
        return True

    def has_tag(self, tag: str) -> bool:
        return self._holds("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")

    def comes_from(self, commit: str, tag: str) -> bool:
        """Whether the tag is the commit or one before it."""
        return self._holds("merge-base", "--is-ancestor", f"refs/tags/{tag}^{{commit}}", commit)

    def date(self, commit: str) -> int:
        """When it was committed, in seconds since 1970."""
        return int(self.git("show", "--no-patch", "--format=%ct", commit))

    def read(self, commit: str, path: str) -> bytes | None:
        """A file of a commit's tree; None where it has none, or a link or a folder."""
        said = self.git("ls-tree", "-z", "--full-tree", commit, "--", path)
        found = said.decode("utf-8", "surrogateescape") or "- - -"
        mode, kind, rest = found.split(" ", 2)
        is_file = kind == "blob" and mode != LINK
        return self.git("cat-file", "blob", rest[: rest.index("\t")]) if is_file else None

    def contents(self, commit: str, folder: str) -> dict[str, bytes]:
        """The files below `folder` in a commit's tree that count (see files/tree.py), links left
        out."""
        blobs = {}
        said = self.git("ls-tree", "-r", "-z", "--full-tree", commit, "--", folder)
        for entry in said.split(b"\0")[:-1]:
            about, path = entry.decode("utf-8", "surrogateescape").split("\t", 1)
            mode, _, blob = about.split()
            if mode not in (LINK, SUBMODULE) and is_part_of_tree(path):
                blobs[path] = blob
        wanted = "".join(f"{blob}\n" for blob in blobs.values()).encode()
        return dict(zip(blobs, run.blobs(self.git("cat-file", "--batch", content=wanted))))

    def listing(self, commit: str, folder: str) -> dict[str, str]:
        """The listing (see files/tree.py) of what lies below `folder` in a commit's tree."""
        return {path: sha256(content) for path, content in self.contents(commit, folder).items()}

    def build(
        self, base: str, commits: Iterable[Commit], person: tuple[str, str], date: int
    ) -> list[str]:
        """Make the commits on top of `base`, one on the other, and return their hashes; no branch
        has them yet.

        date: of author and committer, in seconds since 1970, UTC. The same words give the same
        hashes.
        """
        facts = {"NAME": person[0], "EMAIL": person[1], "DATE": f"{date} +0000"}
        roles = ("AUTHOR", "COMMITTER")
        who = {f"GIT_{role}_{what}": value for role in roles for what, value in facts.items()}
        made: list[str] = []
        with tempfile.TemporaryDirectory(prefix="patchqueue-index-") as space:
            index = {"GIT_INDEX_FILE": f"{space}/index"}
            self.git("read-tree", base, more=index)
            for commit in commits:
                modes = self._modes(commit.files, index)
                rows = []
                for path, content in sorted(commit.files.items()):
                    blob = self._word(
                        "hash-object", "-w", "--stdin", "--no-filters", content=content
                    )
                    rows.append(f"{modes.get(path, '100644')} {blob}\t{path}\0")
                listed = "".join(rows).encode()
                self.git("update-index", "-z", "--index-info", content=listed, more=index)
                tree = self._word("write-tree", more=index)
                words = ["commit-tree", tree, "-p", made[-1] if made else base]
                made.append(self._word(*words, content=commit.message.encode(), more=who))
        return made

    def _modes(self, paths: Iterable[str], index: Mapping[str, str]) -> dict[str, str]:
        wanted = (f":(top,literal){path}" for path in paths)
        said = self.git("ls-files", "-z", "--stage", "--full-name", "--", *wanted, more=index)
        found = said.decode("utf-8", "surrogateescape")
        return {entry.split("\t", 1)[1]: entry.split(" ", 1)[0] for entry in found.split("\0")[:-1]}

    def put(self, name: str, before: str | None, tip: str) -> Outcome:
        """Make a branch at `tip`, unless it is there. before: where it is. Raises Refused where
        that is elsewhere, and where git will not have it."""
        self.refuse_taken(name, before, tip)
        if before == tip:
            return Outcome.ALREADY_APPLIED
        ref = f"refs/heads/{name}"
        try:
            self.git("update-ref", "-m", "patchqueue: created", ref, tip, "0" * len(tip))
        except Failed as failure:
            what, where = f"git does not make it: {failure}", f"{self.shown}: {name}"
            raise Refused.of("bad-branch", where, what, "name another branch") from None
        return Outcome.APPLIED

    def refuse_taken(self, name: str, before: str | None, tip: str) -> None:
        """Raise Refused where a branch of this name is another: it may hold work of the user's."""
        if before in (None, tip):
            return
        what = f"is there, at {(before or '')[:12]}, and the queue makes {tip[:12]}"
        step = "name another branch, or rename that one: it may hold work of yours"
        raise Refused.of("branch-exists", f"{self.shown}: {name}", what, step)


def open_repository(name: str) -> Repository:
    """The repository at or above the folder `name`. Raises Refused where there is none, or no
    git."""
    path = Path(name).expanduser()

    def bad(what: str) -> Refused:
        step = "give a git checkout of sglang: --onto PATH"
        return Refused.of("no-repository", name, what, step)

    if not path.is_dir():
        raise bad("there is no such folder")
    try:
        top = run.git(path, "rev-parse", "--absolute-git-dir").stdout.strip()
    except Failed as failure:
        raise bad(f"is no git checkout: {failure}") from None
    if not top:
        raise bad("is no git checkout")
    return Repository(path.resolve(), name)
