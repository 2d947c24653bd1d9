"""The pristine release: a wheel, checked, cached, offline; and its tree hash."""

import io
import os
import shutil
import stat
import subprocess
import zipfile

import fakes
import pytest
from fakes import RELEASE, TAG, WHEEL, git, refused
from served import Site

from patchqueue.files import tree
from patchqueue.files.tree import hash_python, list_folder
from patchqueue.handover.repository import open_repository
from patchqueue.upstream import release, source


def cached(project):
    (path,) = (project.cache / "archives").glob("*/*.whl")
    return path


def test_tree_hash_is_what_sha256sum_says(applied):
    """The documented command line, run as it stands in tree.py."""
    lines = [line.strip() for line in tree.__doc__.splitlines()]
    command = next(line for line in lines if line.startswith("find ")).replace("\\\\", "\\")
    code = applied.tree / "python/sglang/srt/__pycache__/runner.cpython-311.pyc"
    code.parent.mkdir()
    code.write_text("byte code\n")  # as running the tree leaves it
    words = {"shell": True, "cwd": applied.tree, "capture_output": True, "text": True}
    for expected in (applied.apply().record["tree"]["after"], applied.pin.tree):
        said = subprocess.run(command, check=True, **words).stdout
        assert f"sha256:{said.split()[0]}" == expected == hash_python(list_folder(applied.tree))
        applied.unapply()


def members_of_the_tree(*without: str) -> set[str]:
    """The release's files in git's layout, less those that end so."""
    names = [name for name in RELEASE if name.startswith("sglang/") and not name.endswith(without)]
    return {f"python/{name}" for name in names}


def test_reads_a_wheel_in_gits_layout_fetched_by_pip_once_and_offline_after(project, said):
    origin = source.fetch(project.pin, None)
    assert origin.read("python/sglang/version.py") == b'__version__ = "9.9.1"\n'
    assert origin.read("python/sglang/nothing.py") is origin.read("sglang/version.py") is None
    assert set(origin.listing()) == members_of_the_tree(".so")
    assert hash_python(origin.listing()) == project.pin.tree
    shutil.rmtree(project.cache / "archives")
    source.fetch(project.pin, None)
    assert said == [f"fetching {WHEEL}"] and cached(project).stat().st_mode & 0o222 == 0
    shutil.rmtree(project.wheels)
    source.fetch(project.pin, None)
    assert len(said) == 1


def test_a_damaged_cache_entry_is_noticed_and_fetched_again(project, said, tmp_path):
    """And what a killed run left in the cache is removed."""
    left = project.cache / "tmp-left"
    (left / "half").mkdir(parents=True)
    path = cached(project)
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    origin = source.fetch(project.pin, None)
    assert said == [f"the cached {WHEEL} is damaged; it is fetched again", f"fetching {WHEEL}"]
    assert source.file_sha256(origin.archive) == project.pin.wheels[0].sha256 and not left.exists()
    project.edit("upstream/pins.toml", project.pin.tree, "sha256:" + "0" * 64)
    origin.pin = project.pins.find(TAG)
    assert refused(origin.unpack, tmp_path / "out")[0] == "tree mismatch"


def test_an_index_that_serves_another_file_is_refused(project):
    shutil.rmtree(project.cache / "archives")
    fakes.write_wheel(project.wheels / WHEEL, RELEASE | {"sglang/version.py": "evil\n"})
    name, text = refused(source.fetch, project.pin, None)
    assert name == "wrong-sha256" and WHEEL in text and project.pin.wheels[0].sha256 in text
    assert not list(project.cache.glob("archives/*/*")) and not list(project.cache.glob("tmp-*"))


@pytest.fixture
def offline(monkeypatch):
    """A package index that nobody answers for."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")


def test_an_index_that_cannot_be_reached_is_asked_once(project, offline, said):
    name, text = refused(release.add_pin, project.root, "9.9.2", None)
    assert name == "not-fetched" and "cannot be reached: [Errno 111] Connection refused" in text
    assert f"; asked: http://127.0.0.1:1/simple, {project.wheels} [" in text
    assert said == ["asking for the wheels of sglang 9.9.2"]
    project.newer("9.9.3")
    assert release.add_pin(project.root, "9.9.3", None).tag == "v9.9.3"


def test_a_wheel_that_cannot_be_fetched_names_the_index_without_its_password(
    project, offline, monkeypatch
):
    monkeypatch.setenv("PIP_INDEX_URL", "http://alice:secret@127.0.0.1:1/simple")
    shutil.rmtree(project.cache / "archives")
    (project.wheels / WHEEL).unlink()
    _, text = refused(source.fetch, project.pin, None)
    assert "Connection refused; asked: http://127.0.0.1:1/simple, " in text and "secret" not in text
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    _, text = refused(source.fetch, project.pin, None)
    assert f"No matching distribution found for sglang==9.9.1; asked: {project.wheels} [" in text


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A package index on this host that has sglang 9.9.2, and what it is asked."""
    name = "sglang-9.9.2-py3-none-any.whl"
    folder = tmp_path / "index/sglang"
    fakes.write_wheel(folder / name, fakes.release_of("9.9.2"))
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    for variable in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable)
    with Site.started(tmp_path / "index") as site:
        monkeypatch.setenv("PIP_INDEX_URL", site.url)
        yield site.asked


def test_a_release_that_the_index_lacks_is_asked_for_once(project, served):
    name, text = refused(release.add_pin, project.root, "9.9.7", None)
    assert name == "not-fetched" and "no wheel of it is available; asked: http" in text
    assert len(served) == 1
    assert release.add_pin(project.root, "9.9.2", None).tag == "v9.9.2"


def test_a_page_of_links_is_looked_through(project, served, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ['PIP_INDEX_URL']}/sglang/index.html")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert release.add_pin(project.root, "9.9.2", None).tag == "v9.9.2"


def test_an_index_gets_its_password_and_no_command_does(project, served, monkeypatch):
    """Every user of a host can read the words of a running command."""
    url = os.environ["PIP_INDEX_URL"]
    monkeypatch.setenv("PIP_INDEX_URL", url.replace("//", "//alice:secret@"))
    asked, ask, pip = [], source.urlopen, source.subprocess.run

    def noted(request, **options):
        asked.append((request.full_url, request.get_header("Authorization")))
        return ask(request, **options)

    def run(words, **options):
        assert "secret" not in " ".join(words)
        return pip(words, **options)

    monkeypatch.setattr(source, "urlopen", noted)
    monkeypatch.setattr(source.subprocess, "run", run)
    assert release.add_pin(project.root, "9.9.2", None).tag == "v9.9.2"
    assert asked == [(f"{url}/sglang/", "Basic YWxpY2U6c2VjcmV0")]


def archive_of(*members: tuple[zipfile.ZipInfo | str, str]) -> zipfile.ZipFile:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return zipfile.ZipFile(held)


def link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "member",
    [
        "../evil.py",
        "sglang/../../evil.py",
        "sglang/./a.py",
        "/etc/evil.py",
        "sglang\\a.py",
        "..\\evil.py",
        "sglang//a.py",
        "sglang/ok.py",  # twice
        "sglang/a.py#.txt",  # a null byte, where zipfile would cut the name
        link("sglang/a.py"),
        link("other"),
    ],
    ids=repr,
)
def test_members_that_are_refused(member):
    held = archive_of(("sglang/ok.py", ""), (member, "x")).fp.getvalue().replace(b"#", b"\0")
    archive = zipfile.ZipFile(io.BytesIO(held))
    name, text = refused(source.members, archive, WHEEL)
    assert name == "bad-member" and WHEEL in text


@pytest.fixture
def checkout(project, tmp_path):
    return project.checkout(tmp_path / "checkout")


def filtered(checkout, note) -> None:
    """Its own settings name a program that git runs on each file that it checks out or archives."""
    (checkout / ".git/info/attributes").write_text("*.py filter=evil ident eol=crlf\n")
    git(checkout, "config", "filter.evil.smudge", f"touch {note}; cat")
    git(checkout, "config", "filter.evil.required", "true")


def test_no_filter_of_a_repository_runs(project, checkout, tmp_path):
    filtered(checkout, tmp_path / "ran")
    name, repository = "python/sglang/version.py", open_repository(str(checkout))
    assert repository.contents(TAG, "python")[name] == RELEASE["sglang/version.py"].encode()
    assert not (tmp_path / "ran").exists()
    blob = git(checkout, "rev-parse", f"{TAG}:{name}").strip()
    (checkout / ".git/objects" / blob[:2] / blob[2:]).unlink()
    name, text = refused(repository.contents, TAG, "python")
    assert name == "no-blob" and blob in text


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a repository to another user")
def test_a_repository_of_another_user_is_refused_until_it_is_allowed(project, checkout, tmp_path):
    """git's own rule: what the repository's settings name would run as the caller."""
    filtered(checkout, tmp_path / "ran")
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)

    def call():
        return open_repository(str(checkout)).commit(TAG)

    name, text = refused(call)
    assert name == "foreign-repository" and "`git config --global --add safe.directory" in text
    allowed = text.rpartition("safe.directory ")[2].strip("`")
    for folder in ("/nowhere", allowed):
        git(tmp_path, "config", "--global", "--add", "safe.directory", folder)
    assert call() and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("given", ["nothing/there", "a folder without wheels", "another wheel"])
def test_from_what_is_no_wheel_of_the_release(project, tmp_path, given):
    (tmp_path / "a folder without wheels").mkdir()
    fakes.write_wheel(tmp_path / "another wheel", RELEASE | {"sglang/version.py": "evil\n"})
    expected = "wrong-sha256" if given == "another wheel" else "not-fetched"
    assert refused(source.fetch, project.pin, tmp_path / given)[0] == expected
