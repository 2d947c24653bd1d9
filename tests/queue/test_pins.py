"""upstream/pins.toml: what is refused in it, how a revision is found, and how one is added."""

import multiprocessing

import fakes
import pytest
from fakes import RELEASE, WHEEL, refused, unchanged

from patchqueue.files.tree import hash_python
from patchqueue.upstream import pins, release, source

BAD = [  # what replaces what in a good pins.toml, and what the refusal says
    ('default = "9.9.1"', "", "default"),
    ('default = "9.9.1"', 'default = "9.9.2"', "9.9.2"),
    ('default = "9.9.1"', 'default = "9.9.1"\ntested = ["9.9.2"]', "tested"),
    ("[[revision]]", "[[revisions]]", "field `revision`"),
    ("[[revision]]", "[[revision", "not TOML"),
    ('version = "9.9.1"', 'version = "newest"', "version"),
    ('tag = "v9.9.1"', 'tag = "../../v9.9.1"', "tag"),
    ('tag = "v9.9.1"', 'tag = "--evil"', "tag"),
    ("released = 2030-01-02", 'released = "2030-01-02"', "released"),
    ("resolve_as_of = 2030-01-05", "", "resolve_as_of"),
    ('tree = "sha256:', 'tree = "', "tree"),
    ('patched = "sha256:', 'patched = "sha1:', "patched"),
    ('sha256 = "', 'sha256 = "x', "[0-9a-f]{64}"),
    ('sha256 = "', 'url = "x", sha256 = "', "wheel"),
    ("-py3-none-any.whl", "-any.whl", "wheel"),
    ("sglang-9.9.1-py3", "sglang-9.9.2-py3", "9.9.2"),
    ("sglang-9.9.1-py3", "vllm-9.9.1-py3", "vllm"),
    ("sglang-9.9.1-py3", "../sglang-9.9.1-py3", "../sglang"),
    ('tag = "v9.9.1"', 'tag = "v9.9.1"\nbranch = "main"', "branch"),
]


@pytest.mark.parametrize("old, new, says", BAD, ids=[f"{new[:30]!r}" for _, new, _ in BAD])
def test_bad_pins(project, old, new, says):
    project.edit("upstream/pins.toml", old, new)
    name, text = refused(pins.load, project.root)
    assert name == "bad-pins" and text.startswith("upstream/pins.toml") and says in text


def test_a_file_without_releases_or_with_one_twice(project):
    file = project.root / "upstream/pins.toml"
    text = file.read_text()
    entry = text[text.index("[[revision]]") :]
    other = entry.replace('"9.9.1"', '"9.9.2"').replace("-9.9.1-", "-9.9.2-")  # of the same tag
    for content, name in (
        (b"", "bad-pins"),
        (b'default = "1"\nrevision = ["1"]\n', "bad-pins"),
        (b"\xff", "bad-pins"),
        ((text + entry).encode(), "duplicate-pin"),
        ((text + other).encode(), "duplicate-pin"),
    ):
        file.write_bytes(content)
        assert refused(pins.load, project.root)[0] == name
    file.unlink()
    name, said = refused(pins.load, project.root)
    assert name == "no-pins" and str(project.root) in said
    file.mkdir()
    assert refused(pins.load, project.root)[0] == "no-pins"


@pytest.mark.parametrize("name", ["v9.9.1", "9.9.1", "9.9.1+cu130", "V9.9.1"])
def test_finds(project, name):
    assert project.pins.find(name).tag == "v9.9.1"


@pytest.mark.parametrize("name", ["9.9.2", "v9.9", "main", "", "../v9.9.1"])
def test_unknown_revision_names_the_known(project, name):
    problem, text = refused(project.pins.find, name)
    assert problem == "unknown-release" and repr(name) in text and "pinned are v9.9.1" in text
    assert "scripts/nox pin" not in text


@pytest.mark.parametrize("name", ["9.9", "v9.9", "9.9.0.post1"])
def test_a_release_that_was_mended_is_answered_with_its_mended_one(project, name):
    project.release("9.9.0.post2")
    problem, text = refused(project.pins.find, name)
    assert problem == "unknown-release" and "did you mean v9.9.0.post2?" in text
    assert "v9.9.1" not in text


def test_add_describes_the_release_and_keeps_comments_and_order(project):
    found = project.pin
    days = (str(found.released), str(found.resolve_as_of))
    assert (found.tag, *days) == ("v9.9.1", "2030-01-02", "2030-01-05")
    assert [wheel.file for wheel in found.wheels] == [WHEEL]
    assert found.tree == hash_python(source.fetch(found, None).listing())
    file = project.root / "upstream/pins.toml"
    file.write_text(file.read_text() + "# the end\n")
    for version in ("9.10.0", "9.9.1.post1", "9.9.2", "9.8.3"):
        project.release(version)
    tags = [each.tag for each in project.pins.all]
    assert tags == ["v9.8.3", "v9.9.1", "v9.9.1.post1", "v9.9.2", "v9.10.0"]
    text = file.read_text()
    assert "# the end" in text and text.startswith("# The pinned releases")
    assert not list((project.root / "upstream").glob("*.new"))


def test_many_at_once_are_all_kept(project):
    names = [f"9.9.{number}" for number in range(2, 10)]
    for name in names:
        project.newer(name)
    fork = multiprocessing.get_context("fork").Process
    more = project.wheels
    children = [fork(target=release.add_pin, args=(project.root, name, more)) for name in names]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * len(names)
    assert {str(each.version) for each in project.pins.all} >= set(names)


def test_add_takes_every_wheel_for_linux(project):
    """Of a Python, a C library and a version of it that are new; none of other systems."""
    tags = ("cp311-cp311-manylinux_2_35_x86_64", "cp315-cp315-musllinux_1_2_aarch64")
    linux = [f"sglang-9.9.2-{each}.whl" for each in tags]
    files = fakes.release_of("9.9.2")
    files["sglang-9.9.2.dist-info/METADATA"] += "Requires-Python: >=3.11\n"
    for name in (*linux, "sglang-9.9.2-cp311-cp311-macosx_14_0_arm64.whl"):
        fakes.write_wheel(project.wheels / name, files)
    assert [wheel.file for wheel in release.add_pin(project.root, "9.9.2", None).wheels] == linux


def platform_wheels(project, second: dict[str, str]) -> None:
    (project.wheels / WHEEL).unlink()
    for python, files in (("cp311", RELEASE), ("cp312", RELEASE | second)):
        name = f"sglang-9.9.2-{python}-{python}-manylinux_2_34_x86_64.whl"
        fakes.write_wheel(project.wheels / name, files)


def test_add_takes_wheels_that_differ_in_compiled_parts_only(project):
    platform_wheels(project, {"sglang/srt/kernels.so": "another"})
    assert len(release.add_pin(project.root, "9.9.2", project.wheels).wheels) == 2


def wheel(content, name: str = "sglang-9.9.2-py3-none-any.whl"):
    """A wheel with these files, or of these bytes."""

    def make(project):
        if isinstance(content, bytes):
            (project.wheels / name).write_bytes(content)
        else:
            fakes.write_wheel(project.wheels / name, content)

    return make


def damaged(project):
    path = fakes.write_wheel(project.wheels / "sglang-9.9.2-py3-none-any.whl", RELEASE)
    path.write_bytes(path.read_bytes().replace(b"step_1 = 1", b"step_1 = 2"))


def written(text: str):
    return lambda project: project.write("upstream/pins.toml", text)


def nothing(project):
    pass


@pytest.mark.parametrize(
    "version, change, name",
    [
        ("9.9.2", lambda project: (project.wheels / WHEEL).unlink(), "not-fetched"),
        ("9.9.1", nothing, "duplicate-pin"),
        ("9.9.01", nothing, "duplicate-pin"),
        ("newest", nothing, "unknown-release"),
        ("9.9.2", lambda p: platform_wheels(p, {"sglang/version.py": "other\n"}), "wheels-differ"),
        ("9.9.2", wheel(b"no zip"), "bad-archive"),
        ("9.9.2", damaged, "bad-archive"),
        ("9.9.2", wheel({"other/a.py": ""}), "bad-archive"),
        ("9.9.2", wheel(RELEASE, "sglang-9.9.2-any.whl"), "bad-pins"),
        ("9.9.2", wheel(RELEASE | {"../evil.py": "x"}), "bad-member"),
        ("9.9.2", written("[[["), "bad-pins"),
        ("9.9.2", written("default = 1\n"), "bad-pins"),
    ],
)
def test_add_refuses_and_leaves_pins_as_they_are(project, version, change, name):
    change(project)
    with unchanged(project.root):
        assert refused(release.add_pin, project.root, version, project.wheels)[0] == name
