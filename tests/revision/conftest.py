"""Tests of one patched release, on a host without a GPU: `nox -s test` runs them in the release's
own environment.

    @pytest.mark.revision(">=0.5.11,<0.5.13")      the releases a test is for; on others it is skipped, and listed
    def test_layers(build_model):
        model = build_model("nemotron_h")           the real class on the meta device; see host/models.py

Every file here is collected on every release: sglang is imported as host/late.py says. This file
is also run where torch is missing (tests/queue/test_testing.py): its fixtures import what needs it.
"""  # noqa: E501

import functools
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))  # whose modules tests import
from host import interpreted, late, logged, standin_packages
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version


def _tree():
    return Path(os.environ["PATCHQUEUE_TREE"]).resolve()


def _inside(file, folder):
    return file is not None and Path(file).resolve().is_relative_to(folder)


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "revision(SPECIFIERS): the releases of sglang that the test is for, as in series"
    )
    config.addinivalue_line("markers", "patch(NAME, ...): the patches that the test is of")
    config.option.reportchars += "s"  # list what is for other releases
    missing = [
        name for name in ("PATCHQUEUE_TREE", "PATCHQUEUE_REVISION") if not os.environ.get(name)
    ]
    if missing:
        raise pytest.UsageError(
            f"{' and '.join(missing)} not set: run these tests with `nox -s test -- v0.5.9`"
        )
    found = importlib.util.find_spec("sglang")
    origin = found and (found.origin or next(iter(found.submodule_search_locations or []), None))
    if not _inside(origin, _tree() / "python"):
        raise pytest.UsageError(
            f"sglang would come from {origin}, not from the tree under test {_tree()}: put its"
            " python/ first on PYTHONPATH, or use `nox -s test`"
        )
    standin_packages.install()


def pytest_report_header(config):
    return f"sglang {os.environ['PATCHQUEUE_REVISION']}, patched, from {_tree()}"


def _is_for(item, version):
    """Whether every revision marker on the test, its class and its module allows `version`."""
    for mark in item.iter_markers("revision"):
        try:
            allowed = SpecifierSet(",".join(mark.args))
        except (InvalidSpecifier, TypeError) as error:
            raise pytest.UsageError(f"{item.nodeid}: bad revision marker: {error}") from None
        if not allowed.contains(version, prereleases=True):
            return False
    return True


ENTRY = re.compile(r"(?m)^(\S+?)(?:@\S+)?\.patch *# (.*)$")  # of series: a patch, and its releases


def _patches():
    """(the patches of a tree of part of the queue, those that it lacks: each with the files of
    tests that its header names). The tree of the whole queue has none of either. A branch that
    brought these tests along has no series, and lacks none that names a file here."""
    record = _tree() / "python/sglang/srt/prefill_graph/provenance.json"
    made = json.loads(record.read_text()) if record.is_file() else {"queue": "whole"}
    if made["queue"]:
        return set(), {}
    root = Path(__file__).parents[2]
    present = {re.split(r"@|\.patch$", patch["name"])[0] for patch in made["patches"]}
    version, series = Version(os.environ["PATCHQUEUE_REVISION"]), root / "series"
    entries = ENTRY.findall(series.read_text()) if series.is_file() else ()
    lacked = {name for name, guard in entries if SpecifierSet(guard).contains(version)} - present
    texts = {name: (root / f"patches/{name}.patch").read_text() for name in lacked}
    headers = {name: text.partition("\n---")[0] for name, text in texts.items()}
    return present, {name: re.findall(r"test_\w+\.py", header) for name, header in headers.items()}


def _lacking(items):
    """(test, patch that the tree lacks), for each test of which it has no patch. A test is of those
    that its nearest marker names; without one, of all that name its file, but for those that a
    marker of another test there names."""
    present, lacked = _patches()
    marks = (item.get_closest_marker("patch") for item in items)
    own = [{*mark.args} if mark else set() for mark in marks]
    marked = {(item.path, name) for item, names in zip(items, own) for name in names}
    for item, names in zip(items, own) if present else ():
        of_file = {name for name, tests in lacked.items() if item.path.name in tests}
        others = {name for name in of_file if (item.path, name) not in marked}
        wanted = (names & lacked.keys() if lacked else names) if names else others
        if wanted and names.isdisjoint(present):
            yield item, min(wanted)


def pytest_collection_modifyitems(items):
    for item, patch in _lacking(items):
        item.add_marker(pytest.mark.skip(reason=f"of {patch}, which this tree lacks"))
    version = Version(os.environ["PATCHQUEUE_REVISION"])
    for item in items:
        if not _is_for(item, version):
            wanted = " and ".join(",".join(mark.args) for mark in item.iter_markers("revision"))
            item.add_marker(pytest.mark.skip(reason=f"for {wanted}, not for {version}"))
    items.sort(key=_is_quick)


@functools.lru_cache
def _starts_interpreter(file):
    text = Path(file).read_text(encoding="utf-8")
    return any(words in text for words in ("interpreted.run(", "\nREFERENCE = ", "\ndef compare("))


def _is_quick(item):
    """Files that interpret kernels for most of a minute must not come last of those spread."""
    return not _starts_interpreter(item.path)


@pytest.fixture(scope="session")
def tree():
    """Folder of the patched tree; the package lies in its python/sglang."""
    return _tree()


@pytest.fixture(scope="session")
def revision():
    """The release under test, a packaging.version.Version. Tests should rather ask for features."""
    return Version(os.environ["PATCHQUEUE_REVISION"])


@pytest.fixture(scope="module", autouse=True)
def _modules_of_the_release(request):
    """Before a file's first test changes anything that they look at."""
    late.import_all(vars(request.module))


@pytest.fixture(scope="module")
def compared(request):
    """What each of the file's CASES comes to: in its own compare(), or in that of the program of
    host/references that its REFERENCE names."""
    module = request.module
    named = getattr(module, "REFERENCE", None)
    return interpreted.run(f"host.references.{named}" if named else module.__name__, module.CASES)


@pytest.fixture(scope="session")
def build_model():
    """host.models.build: build_model(kind, device="meta", server_args={...}, **config changes)."""
    from host import models

    return models.build


@pytest.fixture
def captured(monkeypatch):
    """captured(kind, **changes): host.captures.capture, a small model's prefill graph."""
    from host import captures

    with captures.recording(monkeypatch):
        yield functools.partial(captures.capture, monkeypatch)


@pytest.fixture
def captured_states(captured, monkeypatch):
    """captured_states(kind, **changes): host.captures.capture_states."""
    from host import captures

    return functools.partial(captures.capture_states, monkeypatch)


@pytest.fixture
def unbroken(build_model):
    """A Falcon-H1 whose first layer makes no break at its mixer."""
    from host import beside

    return beside.unbroken(build_model("falcon_h1"))


@pytest.fixture
def decided(caplog):
    """decided(model, **what host.runner.decide takes): the model runner after the release's own
    decision, and its warnings."""
    from host import runner

    def decide(model, **changes):
        caplog.clear()
        made = runner.decide(model, **changes)
        return made, logged.warnings(caplog, "CUDA graph")

    return decide


@pytest.fixture
def unpinned(monkeypatch):
    """Tensors are made where no memory can be pinned."""
    import torch

    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *words, pin_memory=None, **n: made(*words, **n))


@pytest.fixture
def resolve(tmp_path):
    """resolve(config, **options): the release's own server arguments as at start-up on a GPU, for a
    model of which there is only a config."""
    from sglang.srt.server_args import ServerArgs

    def run(config, **options):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return ServerArgs(model_path=str(tmp_path), device="cuda", **options)

    with mock.patch.dict(os.environ):  # resolving sets some variables
        yield run
