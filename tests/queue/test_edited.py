"""Trees that carry edits of others: each kind is laid, or refused by both sides; what was found
comes back byte for byte."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT, RUNNER, exactly, refused, unchanged, verified
from test_install import edit, killed_at, nameless

from patchqueue.applying.apply import described, rows_in, undone
from patchqueue.applying.matching import nearest
from patchqueue.files import tree as trees
from patchqueue.handover import backport
from patchqueue.install import inplace, undo
from patchqueue.install.patched import Differing, InPlace
from patchqueue.outcome import Outcome, Refused
from patchqueue.queue import series
from patchqueue.upstream import release as edits

PATCHED, CUT, PAGE = (f"sglang/srt/{name}.py" for name in ("runner", "cut", "page"))
OWN = series.PACKAGE.removeprefix("python/")
MODULE = "report/provenance.py"


@pytest.fixture
def edited(project) -> fakes.Project:
    """A project whose overlay has the real package's module that verifies a tree."""
    own = ROOT / "overlay" / series.PACKAGE
    for name in ("__init__.py", "report/__init__.py"):
        project.write(f"overlay/{series.PACKAGE}{name}", '"""A package."""\n')
    project.write(f"overlay/{series.PACKAGE}{MODULE}", (own / MODULE).read_bytes())
    both = "sglang/srt/steps/, python/sglang/srt/prefill_graph/"
    project.edit(f"patches/{fakes.COUNT}", "sglang/srt/steps/", both)
    return project


@pytest.fixture
def alone(tmp_path) -> Path:
    """The same release, where the queue never is."""
    return fakes.install(tmp_path / "alone")


@dataclass(frozen=True)
class Kind:
    """A foreign edit."""

    make: Callable[[Path], None]
    said: str = ""  # a part of the refusal, "" where it is laid
    since: str = ""  # the problem where the queue was there first, "" where that is taken off


def differing(site: Path) -> Differing:
    """The files of an install in place that are not as it left them, by whose they are."""
    return InPlace(undo.read(site)).differing


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def make(site: Path) -> None:
        text = (site / name).read_text()
        assert old in text
        (site / name).write_text(text.replace(old, new, 1))

    return make


def changed(change: Callable[[str], str], name: str = PATCHED) -> Callable[[Path], None]:
    return lambda site: (site / name).write_text(change((site / name).read_text()))


def with_a_block_moved(text: str) -> str:
    """The lines that the queue changes go to the end of the file, as they are."""
    begin, end = text.index("step_15 = "), text.index("step_28 = ")
    return text[:begin] + text[end:] + text[begin:end]


def named_as_ours(site: Path) -> None:
    (site / "sglang/srt/steps").mkdir(exist_ok=True)
    (site / "sglang/srt/steps/__init__.py").write_text("mine = 1\n")


def with_other_line_ends(site: Path) -> None:
    (site / PATCHED).write_bytes((site / PATCHED).read_bytes().replace(b"\n", b"\r\n"))


SINCE = "edits were made"
KINDS = {
    "before our hunks": Kind(replaced(PATCHED, "step_3 = 3\n", "step_3 = 33\nmine = 1\n")),
    "behind our hunks": Kind(replaced(PATCHED, "step_30 = 30\n", "mine = 1\n")),
    "inside our hunks": Kind(
        replaced(PATCHED, "step_20 = 20\n", "step_20 = 20 + mine\n"),
        "hunk 1: line 20 reads 'step_20 = 20 + mine'; the queue's patch needs 'step_20 = 20'",
        SINCE,
    ),
    "right beside our hunks": Kind(replaced(PATCHED, "step_17 = 17\n", "mine = 1\n")),
    "a line between ours": Kind(
        replaced(PATCHED, "step_19 = 19\n", "step_19 = 19\nmine = 1\n"),
        "hunk 1: line 20 reads 'mine = 1'; the queue's patch needs 'step_20 = 20'",
        SINCE,
    ),
    "a file of ours gone": Kind(
        lambda site: (site / CUT).unlink(), "cut.py: the queue changes this file, and the tree has"
    ),
    "moved lines": Kind(changed(with_a_block_moved)),
    "lines twice": Kind(changed(lambda text: text * 2), "is at 2 places: lines 18, 58", SINCE),
    "a new file": Kind(edit("sglang/srt/mine.py", "mine = 1\n")),
    "a new file with a name of ours": Kind(
        named_as_ours,
        "the queue adds python/sglang/srt/steps/__init__.py, and this tree has a file of that name",
    ),
    "a file that we do not touch": Kind(edit(PAGE, "mine = 1\n")),
    "a file that we do not touch gone": Kind(lambda site: (site / PAGE).unlink()),
    "a file of data": Kind(edit("sglang/srt/table.json", "{}")),
    "line ends": Kind(with_other_line_ends, r"hunk 1: line 18 reads 'step_18 = 18\r'"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_each_kind_is_laid_or_refused_by_name(edited, site, kind):
    kind.make(site)
    with unchanged(site):
        if kind.said:
            name, text = refused(inplace.install, edited.root, site)
            assert name == "conflict" and kind.said in text and "next: " in text, text
            assert not re.search(r"reinstall|restore|discard", text), "theirs are not to go"
            return
        report = inplace.install(edited.root, site)
        assert report.outcome is Outcome.APPLIED
        assert len(report.before) == 1 and "added_step" in (site / PATCHED).read_text()
        again = inplace.install(edited.root, site)
        assert (again.outcome, again.others) == (Outcome.ALREADY_APPLIED, ())
        assert again.before == report.before and differing(site) == ((), ())
        found = verified(site)
        assert found["intact"] and found["before"] == list(report.before) and not found["others"]
        inplace.uninstall(edited.root, site)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "line ends"])
def test_the_queue_first_then_theirs(edited, site, alone, name):
    """Then the tree has the release with their edit, as if the queue had never been there."""
    kind = KINDS[name]
    kind.make(alone)
    inplace.install(edited.root, site)
    kind.make(site)
    faults, others = differing(site)
    found = verified(site)
    assert faults == tuple(name for name, _ in found["faults"])
    modules = tuple(name for name in others if name.endswith(".py"))
    assert modules == tuple(name for name, _ in found["others"])
    assert faults or others
    assert found["intact"] is (not faults)
    if faults:
        with unchanged(site):
            assert refused(inplace.uninstall, edited.root, site)[0] == "edited-install"
        return
    try:
        done = inplace.uninstall(edited.root, site)
    except Refused as refusal:
        assert kind.since, refusal
        assert "remove that edit, run the same command again" in str(refusal)
        return
    assert done.others == others
    assert trees.list_package(site) == trees.list_package(alone)


def test_the_queue_is_laid_anew_below_their_later_edits(edited, site, alone):
    """An upgrade: their edits of before and since stay, and the first ones come back as found."""
    KINDS["before our hunks"].make(site)
    inplace.install(edited.root, site)
    for place in (alone, site):
        KINDS["behind our hunks"].make(place)
    KINDS["before our hunks"].make(alone)
    edited.edit(f"patches/{fakes.COUNT}", "+added_step = 20", "+added_step = 21")
    report = inplace.install(edited.root, site)
    assert report.outcome is Outcome.APPLIED and report.before == (PATCHED,)
    text = (site / PATCHED).read_text()
    assert "added_step = 21" in text and "step_3 = 33" in text and "step_30 = 30" not in text
    inplace.uninstall(edited.root, site)
    assert trees.list_package(site) == trees.list_package(alone)


def test_an_upgrade_that_does_not_fit_leaves_the_older_queue(edited, site):
    inplace.install(edited.root, site)
    KINDS["before our hunks"].make(site)
    with unchanged(site):
        edited.edit(f"patches/{fakes.COUNT}", "step_18 = 18", "step_19 = 18")
        name, said = refused(inplace.install, edited.root, site)
        assert name == "conflict" and "the queue's patch needs 'step_19 = 18'" in said


def test_a_change_that_the_tree_has_already_is_left_out(edited, site, tool):
    replaced(PATCHED, "step_20 = 20\n", "step_20 = 20\nadded_step = 20\n")(site)
    with unchanged(site):
        code, out, _ = tool(edited, "install", "--site-packages", site)
        assert code == 0
        assert "steps/count-once-more: these files have that change already" in out
        assert (site / PATCHED).read_text().count("added_step") == 1
        assert inplace.install(edited.root, site).outcome is Outcome.ALREADY_APPLIED
        inplace.uninstall(edited.root, site)


def test_the_release_is_named_where_nothing_names_it(edited, site, monkeypatch, tool):
    """Another release than the one that the files are is refused, named or not."""
    edited.release("9.9.3", fakes.release_of("9.9.3") | {"sglang/srt/new.py": "new = 1\n"})
    with unchanged(site):
        name, text = refused(inplace.install, edited.root, site, release="9.9.3")
        assert name == "other-release" and "is v9.9.1, by its files, and not 9.9.3" in text
    nameless(site)
    edit(PATCHED, fakes.RELEASE[PATCHED])(site)
    edit(PAGE, "mine = 1\n")(site)
    assert refused(inplace.install, edited.root, site)[0] == "unknown-release"
    with monkeypatch.context() as patch:
        patch.setattr(edits, "FEW", 0)  # so many files differ that the rest says nothing
        name, text = refused(inplace.install, edited.root, site, release=fakes.TAG)
        assert name == "unlike-release" and PAGE in text
    words = "install", "--site-packages", site, "--release", fakes.TAG
    assert f"{' '.join(map(str, words))}` does that" in tool(edited, *words, "--check")[1]
    report = inplace.install(edited.root, site, release=fakes.TAG)
    assert report.before == (PAGE, "sglang/version.py")


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_killed_at_every_step(edited, site, verb):
    """The next call makes good what is left, and their tree comes back."""
    KINDS["before our hunks"].make(site)
    edit("sglang/srt/mine.py", "mine = 1\n")(site)
    pristine, number = exactly(site), 0
    while True:
        if verb == "uninstall":
            inplace.install(edited.root, site)
        if not killed_at(number, site, lambda: getattr(inplace, verb)(edited.root, site)):
            break
        report = inplace.install(edited.root, site)
        assert len(report.before) == 2
        inplace.uninstall(edited.root, site)
        assert exactly(site) == pristine, f"step {number}"
        number += 7
    assert number > 40


def test_killed_while_later_edits_are_taken_over(edited, alone, tmp_path):
    """At every rename of an uninstall of files that others edited since."""
    KINDS["behind our hunks"].make(alone)
    number, done = 0, False
    while not done:
        here = fakes.install(tmp_path / f"site-{number}")
        inplace.install(edited.root, here)
        KINDS["behind our hunks"].make(here)
        done = not killed_at(number, here, lambda: inplace.uninstall(edited.root, here))
        if undo.state_of(here) == undo.State.INSTALLED:
            assert differing(here).ours == ()
        inplace.uninstall(edited.root, here)
        assert trees.list_package(here) == trees.list_package(alone), f"step {number}"
        assert not (here / undo.FOLDER).exists()
        shutil.rmtree(here)
        number += 5
    assert number > 40


# --- by git


@pytest.fixture
def checkout(edited, tmp_path) -> Path:
    """A fork: the release's tag, and a commit of others on top."""
    fakes.author(tmp_path / "home")
    return edited.checkout(tmp_path / "sglang")


def branch(edited, checkout, **options) -> backport.Branch:
    return backport.backport(edited.root, str(checkout), "graphs", "HEAD", **options)


def forked(checkout: Path, edit: Callable[[Path], object]) -> None:
    """Commit an edit of others."""
    edit(checkout / "python")
    fakes.git(checkout, "add", "-A")
    fakes.git(checkout, "commit", "-q", "-m", "ours")


@pytest.mark.parametrize(
    "name", ["before our hunks", "a new file", "a file that we do not touch gone"]
)
def test_a_branch_begins_at_a_fork(edited, checkout, name):
    forked(checkout, KINDS[name].make)
    made = branch(edited, checkout)
    assert made.pin.tag == fakes.TAG and len(made.edits.paths) == 1
    fakes.git(checkout, "switch", "-q", "graphs")
    found = verified(checkout / "python")
    assert found["intact"] and not found["others"] and len(found["before"]) == 1
    again = inplace.install(edited.root, checkout / "python")
    assert again.notes == ("it was patched by git",) and again.before == tuple(found["before"])
    assert again.record["tree"]["after"] == trees.hash_python(trees.list_folder(checkout))
    assert refused(inplace.uninstall, edited.root, checkout / "python")[0] == "patched-by-git"


def test_a_fork_that_conflicts_makes_no_branch(edited, checkout):
    forked(checkout, KINDS["inside our hunks"].make)
    refs = fakes.git(checkout, "for-each-ref")
    name, text = refused(branch, edited, checkout)
    assert name == "conflict" and KINDS["inside our hunks"].said in text
    assert f"--base {fakes.TAG} BRANCH` begins at the release; `git merge BRANCH`" in text
    assert fakes.git(checkout, "for-each-ref") == refs


# --- one file


def one_file(project: fakes.Project, out: Path) -> backport.PatchFile:
    return backport.write_patch(project.root, project.pin, None, out)


def test_one_file_makes_the_work_tree(edited, checkout, tmp_path):
    """By git, and by patch, which takes it off again too."""
    made = one_file(edited, tmp_path / "queue.patch")
    assert (made.patches, made.changed, made.added) == (2, 2, 7)
    edited.apply()
    paths = trees.list_folder(edited.tree).keys() - {trees.GENERATED}

    def contents(folder: Path) -> dict[str, bytes]:
        return {path: (folder / path).read_bytes() for path in paths}

    fakes.git(checkout, "apply", "--check", str(made.path))
    fakes.git(checkout, "apply", str(made.path))
    assert contents(checkout) == contents(edited.tree)
    assert verified(checkout / "python")["intact"]
    fakes.git(checkout, "apply", "--reverse", str(made.path))
    assert fakes.git(checkout, "status", "--porcelain") == ""
    subprocess.run(["patch", "-p1", "-s", "-i", made.path], cwd=checkout, check=True)
    assert contents(checkout) == contents(edited.tree)


def test_one_file_and_a_forks_patch_go_in_either_order(edited, checkout, tmp_path):
    """As an image lays one patch file after the other, by `git apply`."""
    KINDS["before our hunks"].make(checkout / "python")
    (tmp_path / "theirs.patch").write_text(fakes.git(checkout, "diff"))
    fakes.git(checkout, "checkout", "-q", ".")
    ours, found = one_file(edited, tmp_path / "queue.patch").path, []
    for order in ((ours, tmp_path / "theirs.patch"), (tmp_path / "theirs.patch", ours)):
        for file in order:
            fakes.git(checkout, "apply", "--check", str(file))
            fakes.git(checkout, "apply", str(file))
        found.append(trees.list_package(checkout / "python"))
        said = verified(checkout / "python")
        assert said["intact"] and said["others"] == [[PATCHED, "changed"]]
        fakes.git(checkout, "checkout", "-q", ".")
        fakes.git(checkout, "clean", "-fdq")
    assert found[0] == found[1]


def test_one_file_lays_a_conflict_out(edited, checkout, tmp_path):
    """By the hashes of the release's files, which a checkout has: both sides, to be solved."""
    forked(checkout, KINDS["inside our hunks"].make)
    made = one_file(edited, tmp_path / "queue.patch")
    done = fakes.run("git", "apply", "--3way", made.path, cwd=checkout)
    assert done.returncode == 1 and "with conflicts" in done.stderr
    text = (checkout / RUNNER).read_text()
    assert "<<<<<<<" in text and "step_20 = 20 + mine" in text and "added_step" in text


# --- parts


@pytest.mark.parametrize(
    ("before", "after", "now", "lines"),
    [
        # a line that stands elsewhere too does not stand for one that was taken away
        (b"a\nx\nb\n", b"a\nx\nb\nx\n", b"a\nx\nb\nx\n", []),
        (b"a\nx\nb\n", b"a\nx\nb\nx\n", b"a\nx\nmine\nx\n", []),
        (b"a\nx\nb\n", b"a\nx\nb\nx\n", b"a\nx\nb\n", [4]),
        (b"a\ngone\nb\n", b"a\nb\n", b"a\nb\n", []),
        (b"a\ngone\nb\n", b"a\nb\n", b"a\ngone\nb\n", [2]),
    ],
)
def test_a_change_counts_as_often_as_it_was_laid(before, after, now, lines):
    about = described({"python/f.py": after}, {"python/f.py": before}.get, {})
    assert undone(now, rows_in(about)["f.py"]) == lines


def test_where_most_of_the_lines_stand():
    for lines, at in {"abcdef": 2, "abXdef": 2, "cYdeab": 1, "": 0, "zz": 0}.items():
        assert nearest(list(lines), list("cde")) == at, lines


def test_edits_are_of_others_by_both_readers(edited, site):
    """The tree's own module and the tool agree, file by file."""
    inplace.install(edited.root, site)
    replaced(PATCHED, "added_step = 20\n", "added_step = 21\n")(site)
    KINDS["a file that we do not touch"].make(site)
    (site / OWN / "mine.py").write_text("")
    checked, found = differing(site), verified(site)
    assert checked.ours == (f"{OWN}mine.py", PATCHED)
    assert [name for name, _ in found["faults"]] == list(checked.ours)
    assert [name for name, _ in found["others"]] == list(checked.others) == [PAGE]
    assert f"  changed  {PATCHED}" in found["said"] and f"  changed  {PAGE}" in found["said"]


NAMES = [
    *(f"a{each}b.py" for each in "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\\"),
    f"a\n{'0' * 64}  python.py",
    os.fsdecode(b"a\xffb.py"),
    " .py",
]


def printed(*words: object) -> str:
    """What a command prints, to a terminal that takes UTF-8 alone."""
    code = "import sys; from patchqueue import commands as cli; sys.exit(cli.main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.decode()


def with_any_names(folder: Path) -> list[str]:
    for name in NAMES:
        (folder / "sglang" / name).write_text("mine = 1\n")
    return sorted(f"sglang/{name}" for name in NAMES)


def test_any_name_of_a_file_can_be_taken_back(edited, site):
    """A listing has a line for each file, and a name may hold what ends a line."""
    names = with_any_names(site)
    words, there = ["--root", edited.root], ["--site-packages", site]
    with unchanged(site):
        assert list(inplace.install(edited.root, site).before) == names
        assert "already applied" in printed(*words, "install", *there)
        found = verified(site)
        assert found["intact"] and not found["others"] and found["before"] == names
        listed = (site / trees.LISTING.removeprefix("python/")).read_bytes()
        assert trees.from_sha256sum(listed).keys() >= {f"python/{name}" for name in names}
        printed(*words, "uninstall", *there)


def test_a_fork_may_have_any_name(edited, checkout):
    """In a branch the rest of a tree is known by one hash."""
    forked(checkout, with_any_names)
    branch(edited, checkout)
    fakes.git(checkout, "switch", "-q", "graphs")
    assert verified(checkout / "python")["intact"]


def test_a_listing_is_what_sha256sum_prints_of_any_name(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text(name, errors="surrogateescape")
    listing = {name: trees.sha256((tmp_path / name).read_bytes()) for name in sorted(NAMES)}
    told = subprocess.run(["sha256sum", *listing], cwd=tmp_path, capture_output=True, check=True)
    assert trees.to_sha256sum(listing) == told.stdout
    assert trees.from_sha256sum(told.stdout) == listing


def test_a_kept_module_that_imports_what_went_is_named(edited, site, tool):
    """As a team has it that copied a patched model, and goes on from there."""
    inplace.install(edited.root, site)
    for name, text in {
        "team": "import os\n\nfrom sglang.srt.prefill_graph.report import provenance\n",
        "near": "def f():\n    from .steps import x\n",
        "other": "import sglang.srt.runner, os\n",
    }.items():
        edit(f"sglang/srt/{name}.py", text)(site)
    code, out, _ = tool(edited, "uninstall", "--site-packages", site)
    near, team = [line for line in out.splitlines() if line.startswith("note: ")]
    assert code == 0 and team.startswith(f"note: sglang/srt/team.py:3 imports {OWN}report/")
    assert near.startswith("note: sglang/srt/near.py:2 imports sglang/srt/steps/__init__.py, which")


# --- the edits of slime and other frameworks, in releases that the machine's cache has


def hunks_in(file: str) -> dict[str, dict[str, str]]:
    return tomlkit.parse(Path(__file__).with_name(file).read_text()).unwrap()


OWN_EDITS, FRAMEWORKS = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in ("your-own-edits", "frameworks")
)
OF_SLIME = "memory-saver/pause-index-keys moe/return-routed-experts-of-own-rank"
SLIME = {f"slime {version}": hunks for version, hunks in hunks_in("slime_hunks.toml").items()}
# framework and release -> file -> hunks; left_out: the patches that the framework has itself
EDITS = {name: {**hunks, "left_out": OF_SLIME} for name, hunks in SLIME.items()}
EDITS |= hunks_in("framework_hunks.toml")


def edit_hunks(site: Path, name: str, hunks: str) -> None:
    """Replace the lines of each hunk but its context by as many comments as it adds."""
    file = site / "sglang/srt" / name
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    for hunk in reversed(hunks.split()):
        first, old, new = map(int, hunk.split(","))
        begin = max(0, first - 1) + max(0, min(3, old - 3))
        end = max(begin, first + old - 4)
        assert end <= len(lines)
        lines[begin:end] = [f"# slime {hunk} {line}\n" for line in range(new - old + end - begin)]
    file.write_text("".join(lines))


def conflicts(site: Path) -> set[str]:
    """The patches that an installation names, without their variants."""
    with pytest.raises(Refused) as caught:
        inplace.install(ROOT, site)
    assert "--without PATCH" in caught.value.problems[0].hint
    where = (each.where.split()[0] for each in caught.value.problems)
    return {re.sub(r"patches/|(@[\d.]+)?\.patch", "", patch) for patch in where}


@pytest.mark.parametrize("name", EDITS)
def test_the_edits_of_a_framework_stay_and_few_patches_are_left_out(name, unpacked_release, tool):
    hunks, version = dict(EDITS[name]), name.partition(" ")[2]
    left_out = hunks.pop("left_out", "").split()
    names = {f"sglang/srt/{file}" for file in hunks}
    _, site = unpacked_release(version)
    for file, text in hunks.items():
        edit_hunks(site, file, text)

    def kept() -> int:
        return sum((site / name).read_bytes().count(b"# slime ") for name in names)

    theirs, before = kept(), exactly(site)
    words = [word for patch in left_out for word in ("--without", patch)]
    if left_out:
        assert conflicts(site) == {*left_out} and exactly(site) == before
    report = inplace.install(ROOT, site, without=left_out)
    assert report.outcome is Outcome.APPLIED and set(report.before) == names
    assert kept() == theirs
    assert inplace.install(ROOT, site, without=left_out).outcome is Outcome.ALREADY_APPLIED
    inplace.uninstall(ROOT, site)
    assert exactly(site) == before
    if name in SLIME:
        there = ("--site-packages", site, *words, "--check")
        code, out, _ = tool(fakes.Project(ROOT, site, site), "install", *there)
        assert code == 0 and f"{site} {' '.join(words)}` does that" in out
        assert exactly(site) == before
        count = len(" ".join(hunks.values()).split())
        assert theirs > 500 and f"\n| {version} | {len(hunks)} | {count} | " in OWN_EDITS
    elif left_out:
        assert f"`scripts/nox install {' '.join(words)}`" in FRAMEWORKS
