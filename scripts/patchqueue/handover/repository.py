"""A git repository, read and added to without touching what is checked out there: commits are
written by `git fast-import`, and only a new branch appears."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files import run
from ..files.run import Failed
from ..files.tree import is_part_of_tree
from ..outcome import Outcome, Refused, some

PROGRAM, LINK, SUBMODULE = "100755", "120000", "160000"  # modes of a tree's entries
UTF_8 = ("utf-8", "surrogateescape")  # a name may have other bytes
NEW = "refs/patchqueue/new"  # the stream's name for its commits; the ref is never written


@dataclass(frozen=True)
class Commit:
    """A commit to be made. files: those that it changes or adds; removed: paths."""

    message: str
    files: Mapping[str, bytes]
    removed: Iterable[str] = ()


@dataclass(frozen=True)
class Repository:
    """A git repository. shown: as the user named it; own: the tool made it, and failures are
    Refused."""

    path: Path
    shown: str
    own: bool = False

    def git(self, *words: str, stdin: bytes = b"", more: Mapping[str, str] | None = None) -> bytes:
        """git's output. Raises Failed where it ends with another code than 0."""
        if self.own:
            return run.own_git(self.path, *words, stdin=stdin, more=more).stdout
        return run.git(self.path, *words, stdin=stdin, more=more).stdout

    def word(self, *words: str, more: Mapping[str, str] | None = None) -> str:
        """The same, where it is a hash or a name."""
        return self.git(*words, more=more).decode().strip()

    def _as_user(self, *words: str) -> bytes:
        """The same by the user's own configuration."""
        return run.run(run.GIT, *words, folder=self.path).stdout

    def author(self) -> str:
        """Who commits, as `Name <mail address>`, by the user's configuration. Raises Refused."""
        words = ("-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT")
        try:
            ident = self._as_user(*words).decode(*UTF_8)
        except Failed as failure:
            what = f"commits need an author, and git says: {failure}"
            name = '`git config --global user.name "Your Name"`'
            step = f"{name} and `git config --global user.email you@example.org`"
            raise Refused.of("no-identity", self.shown, what, step) from None
        return ident[: ident.rindex(">") + 1]

    def refuse_edits(self, base: str) -> None:
        """Raise Refused where the branch begins at HEAD and files that are checked out differ from
        it. Who names a commit means that commit."""
        if base != "HEAD" or self.git("rev-parse", "--is-inside-work-tree").strip() != b"true":
            return
        # As the user's own configuration has it: with core.autocrlf what is checked out is not what
        # is committed, and no edit.
        words = ("-c", "core.fsmonitor=false", "--no-optional-locks", "diff", "HEAD")
        found = self._as_user(
            *words, "--name-only", "-z", "--ignore-submodules=all", "--no-renames"
        )
        edited = found.decode("utf-8", "replace").split("\0")[:-1]
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
        """The commit that a branch, tag or hash stands for, as a full hash. Raises Refused."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        try:
            return self.word(*words, f"{name}^{{commit}}")
        except Failed:
            what = f"has no commit {name!r}"
            step = f"`git -C {self.shown} fetch --tags`, or name another: --base COMMIT"
            raise Refused.of("no-commit", self.shown, what, step) from None

    def branch(self, name: str) -> str | None:
        """The commit a branch is at, None for no branch. Raises Refused for a bad name."""
        what, ref = "is no name for a branch", f"refs/heads/{name}"
        is_name = name not in ("", "HEAD") and not name.startswith(("-", "refs/"))
        if is_name and name in self.tags():
            what = "is a tag's name, and git would not know which is meant"
        elif is_name and self._answer("check-ref-format", "--normalize", ref) == ref:
            return self._answer("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        raise Refused.of("bad-branch", repr(name), what, "name one as release/0.5.9-graphs")

    def _answer(self, *words: str) -> str | None:
        """git's answer, a word; None where git ends with another code than 0."""
        try:
            return self.word(*words)
        except Failed:
            return None

    def tags(self, *words: str) -> list[str]:
        """The names of its tags. words: as `git tag --list` takes them."""
        return self.word("tag", "--list", *words).split("\n")

    def date(self, commit: str) -> int:
        """When it was committed, in seconds since 1970."""
        return int(self.git("rev-list", "--no-walk", "--timestamp", commit).split()[0])

    def contents(self, commit: str, *folders: str) -> dict[str, bytes]:
        """The files below some folders of a commit's tree that count, links left out."""
        blobs = {}
        said = self.git("ls-tree", "-r", "-z", "--full-tree", commit, "--", *folders)
        for entry in said.split(b"\0")[:-1]:
            about, path = entry.decode(*UTF_8).split("\t", 1)
            mode, _, blob = about.split()
            if mode not in (LINK, SUBMODULE) and is_part_of_tree(path):
                blobs[path] = blob
        asked = "".join(f"{blob}\n" for blob in blobs.values()).encode()
        return dict(zip(blobs, _blobs(self.git("cat-file", "--batch", stdin=asked))))

    def build(self, base: str, commits: Iterable[Commit], author: str, date: int) -> list[str]:
        """Make commits on top of `base`, "" for none; their hashes. date: seconds since 1970."""
        stream = b"".join(self._stream(base, commits, f"{author} {date} +0000"))
        return self.git("fast-import", "--quiet", stdin=stream).decode().split()

    def _stream(self, base: str, commits: Iterable[Commit], who: str) -> Iterator[bytes]:
        """The commits for git fast-import, which prints the hash of each."""
        words = ("ls-tree", "-r", "-z", "--full-tree", base)
        listed = self.git(*words).decode(*UTF_8).split("\0") if base else ()
        # files that may be run: they stay so
        programs = {each.partition("\t")[2] for each in listed if each.startswith(PROGRAM)}
        origin = f"from {base}\n" if base else ""
        for number, commit in enumerate(commits, 1):
            message = commit.message.encode()
            yield (
                f"commit {NEW}\nmark :{number}\nauthor {who}\ncommitter {who}\n"
                f"data {len(message)}\n"
            ).encode(*UTF_8)
            yield message + f"\n{origin}".encode()
            # first: a folder may have taken a file's name
            yield from (f"D {path}\n".encode(*UTF_8) for path in sorted(commit.removed))
            for path, content in sorted(commit.files.items()):
                mode = PROGRAM if path in programs else "100644"
                about = f"M {mode} inline {path}\ndata {len(content)}\n"
                yield about.encode(*UTF_8) + content + b"\n"
            yield f"\nget-mark :{number}\n".encode()
            origin = ""
        yield f"reset {NEW}\nfrom {'0' * 40}\n\n".encode()

    def publish(self, tips: Mapping[str, str]) -> list[Outcome]:
        """Make the branches at these commits, all or none: APPLIED, or ALREADY_APPLIED where it is
        there. Raises Refused where a branch is another, and where git will not have a name."""
        before = {name: self.branch(name) for name in tips}
        for name, tip in tips.items():
            if before[name] not in (None, tip):
                what = f"is there, at {before[name]:.12}, and the queue makes {tip[:12]}"
                step = "name another branch, or rename that one: it may hold work of yours"
                raise Refused.of("branch-exists", f"{self.shown}: {name}", what, step)
        new = [name for name in tips if before[name] is None]
        lines = "".join(f"create refs/heads/{name} {tips[name]}\n" for name in new)
        try:
            self.git("update-ref", "-m", "patchqueue: created", "--stdin", stdin=lines.encode())
        except Failed as failure:
            what, where = f"git does not make it: {failure}", f"{self.shown}: {' '.join(new)}"
            raise Refused.of("bad-branch", where, what, "name another branch") from None
        return [Outcome.APPLIED if name in new else Outcome.ALREADY_APPLIED for name in tips]


def _blobs(answer: bytes) -> Iterator[bytes]:
    """The contents in an answer of `git cat-file --batch`, in order. Raises Refused where the
    repository lacks one."""
    at = 0
    while at < len(answer):
        end = answer.index(b"\n", at)
        name, _, said = answer[at:end].decode().rpartition(" ")
        if said == "missing":
            what = "is not in the repository, which is no full clone"
            raise Refused.of("no-blob", f"blob {name}", what, "`git fetch --refetch` there")
        size = int(said)
        yield answer[end + 1 : end + 1 + size]
        at = end + size + 2


def open_repository(name: str) -> Repository:
    """The repository at or above the folder `name`. Raises Refused where there is none."""
    path, what = Path(name).expanduser(), "there is no such folder"
    if path.is_dir():
        try:
            run.git(path, "rev-parse", "--git-dir")
            return Repository(path.resolve(), name)
        except Failed as failure:
            what = f"is no git checkout: {failure}"
    raise Refused.of("no-repository", name, what, "give a git checkout of sglang: --onto PATH")
