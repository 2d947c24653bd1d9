"""The matrix says what evidence shows, and why the rest is not shown."""

import json
import re
import shutil
import sys

import fakes
import pytest
from fakes import ROOT
from msgspec.structs import replace

from evidence import cells, harness, matrix, results
from evidence.footprints import Validity
from evidence.pages import bench, status
from evidence.results import Row
from patchqueue.applying.apply import load_queue
from patchqueue.files import atomic
from patchqueue.outcome import Refused
from patchqueue.upstream import pins


@pytest.fixture(scope="module")
def queue():
    return load_queue(ROOT)


PINS = pins.load(ROOT)
CELLS = cells.load(ROOT)
NEMOTRON = CELLS.features[0]
BREAKABLE = next(feature for feature in CELLS.features if feature.mode == "breakable")
RULES = harness.identity(ROOT)


def judge(rows: list[Row], feature: cells.Feature, tag: str = "v0.5.9"):
    """What the proofs of one host say of a feature."""
    return matrix.judge(rows, PINS.find(tag), feature, validity(tag))


def cell(rows: list[Row], queue, feature=NEMOTRON, tag: str = "v0.5.9") -> matrix.Cell:
    return matrix.cell(rows, queue, PINS.find(tag), feature, validity(tag))


def validity(tag: str = "v0.5.9") -> Validity:
    return Validity(PINS.find(tag).patched, RULES)


def proofs(feature=NEMOTRON, tag="v0.5.9", **changes) -> list[Row]:
    """A passed run of each model of a feature, with today's queue."""
    pin = PINS.find(tag)
    kind = "question" if feature.asked else "proof"
    about = {"kind": kind, "release": str(pin.version), "name": feature.mode}
    host = {"gpu": "NVIDIA Fake", "torch": "2.11.0", "torch_pin": "2.9.1", "date": "2030-01-02"}
    row = Row(**about, **host, verdict="passed", why="the reason", queue=pin.patched, rules=RULES)
    return [replace(row, model=model, **changes) for model in feature.models]


STATES = matrix.State
FAILED, STALE = STATES.FAILED, STATES.STALE
NOT_RUN, NOT_APPLICABLE = STATES.NOT_RUN, STATES.NOT_APPLICABLE
OLD = {"queue": "sha256:0"}


@pytest.mark.parametrize(
    ("changes", "state", "told"),
    [
        ({}, STATES.PROVEN, "on NVIDIA Fake with torch 2.11.0, off the release's pin 2.9.1"),
        ({"rules": "sha256:0"}, STATES.PROVEN, "by an earlier harness"),
        ({"verdict": "failed"}, FAILED, "the reason"),
        ({"verdict": "not applicable"}, NOT_APPLICABLE, "the reason"),
        (OLD, STALE, "the queue has changed since the run of 2030-01-02, which said proven: "),
        (OLD | {"verdict": "failed"}, STALE, "which said failed: on NVIDIA Fake"),
    ],
)
def test_what_evidence_shows(changes, state, told):
    judged = judge(proofs(**changes), NEMOTRON)
    assert judged.state is state and told in judged.reason
    assert judge(proofs(**changes)[:-1], NEMOTRON) is None, "one of two models"


LLAMA = next(feature for feature in CELLS.features if "llama" in feature.models)


@pytest.mark.parametrize(
    ("feature", "tag", "state", "reason"),
    [
        (NEMOTRON, "v0.5.9", NOT_RUN, ""),
        (NEMOTRON, "v0.5.11", NOT_RUN, ""),
        (NEMOTRON, "v0.5.20", NOT_APPLICABLE, "attention in every layer"),
        (NEMOTRON, "v0.5.23", NOT_APPLICABLE, "the piecewise graph is gone upstream"),
        (BREAKABLE, "v0.5.20", NOT_RUN, ""),
        (LLAMA, "v0.5.20", NOT_RUN, ""),
    ],
)
def test_what_the_queue_alone_shows(queue, feature, tag, state, reason):
    """A family can be kept from a graph that others have; an older run does not make that stale."""
    shown = matrix.expected(queue, PINS.find(tag), feature)
    assert shown.state is state and reason in shown.reason
    if state is NOT_APPLICABLE:
        rows = proofs(tag=tag, verdict="not applicable", queue="sha256:0")
        assert cell(rows, queue, feature, tag) == shown


ASKED = next(feature for feature in CELLS.features if feature.mode == "mixed_states")
ALIKE = {"control": True, "verdict": "failed", "why": "alike"}


@pytest.mark.parametrize(
    ("rows", "state", "why"),
    [
        ([], NOT_RUN, ""),
        ([{}], STATES.PROVEN, ""),
        ([{"control": True}], NOT_RUN, ""),
        ([{}, {"control": True}], STATES.PROVEN, ""),
        ([{}, ALIKE], STATES.INCONCLUSIVE, ""),
        ([{}, ALIKE | {"gpu": "another"}], STATES.PROVEN, ""),
        ([{"verdict": "failed", "why": "5 of 24"}, {"gpu": "another"}], FAILED, "5 of 24"),
        ([{"queue": "sha256:old"}], STALE, "since the run of 2030-01-02"),
    ],
)
def test_what_an_answer_shows(queue, rows, state, why):
    made = [proofs(ASKED, "v0.5.16", **{"why": ""} | row)[0] for row in rows]
    shown = cell(made, queue, ASKED, "v0.5.16")
    assert shown.state is state and why in shown.reason


def test_what_has_no_reference_is_inconclusive_and_not_stale(queue):
    """Qwen3-Next ran with today's queue. Its cells reported a fault that an older run had found."""
    earlier = proofs(verdict="failed", queue="sha256:0", attention="fa3")
    today = proofs()
    lost = replace(today[0], verdict="not run", why="its reference failed: 2 of 4 prompts moved")
    rows = [*earlier, lost, *today[1:]]
    shown = cell(rows, queue)
    assert shown.state is STATES.INCONCLUSIVE
    assert f"the reference of {NEMOTRON.models[0]} failed" in shown.reason
    # of a run that found no time, nothing is known
    idle = replace(lost, why="its reference did not run")
    assert judge([idle, *today[1:]], NEMOTRON) is None


@pytest.mark.parametrize("attentions", [("fa3", "flashinfer"), ("flashinfer", "fa3")])
def test_a_stale_cell_reports_the_latest_run(queue, attentions):
    """0.5.18 was proven on an H200, and its cells reported a fault of the day before."""
    before, after = attentions
    rows = [
        *proofs(verdict="failed", queue="sha256:0", date="2026-11-25", attention=before),
        *proofs(queue="sha256:1", date="2026-11-26", attention=after),
    ]
    shown = cell(rows, queue)
    assert shown.state is STATES.STALE
    assert "since the run of 2026-11-26, which said proven" in shown.reason


def test_a_model_that_a_release_does_not_know_keeps_no_cell_from_being_proven():
    """0.5.5's NemotronH has no experts. A run that tried them anyway is not counted."""
    dense, experts = proofs(tag="v0.5.5.post3")
    assert (dense.model, experts.model) == ("nemotron-h", "nemotron-h-moe")
    for rows in ([dense], [dense, replace(experts, verdict="failed")]):
        shown = judge(rows, NEMOTRON, "v0.5.5.post3")
        assert shown.state is STATES.PROVEN
        assert shown.reason.endswith(f"; the release does not know {experts.model}")
    assert judge([experts], NEMOTRON, "v0.5.5.post3") is None


def test_the_pages_are_those_of_today_and_no_pair_wraps():
    text = (ROOT / status.PAGE).read_text(encoding="utf-8")
    tables = status.tables(ROOT, matrix.matrix(ROOT, PINS))
    assert status.in_page(text, tables) == text, "`scripts/nox status` writes it"
    text = bench.page(results.load(ROOT))
    assert (ROOT / bench.PAGE).read_text(encoding="utf-8") == text
    assert not re.search(r"\d → \d", text)


def test_any_of_a_features_patches_leaves_it_to_be_proven(queue):
    brings = ("piecewise/zero-padded-embeds.patch",)
    repairs = ("breakable/pass-embeds-by-name.patch", "piecewise/restore-flag-on-error.patch")
    own = {"models": ("one",), "mode": "breakable", "never": {"<0.5.8": "no such graph"}}
    feature = cells.Feature(brings=brings, repairs=repairs, upstream="0.5.11", **own)
    for tag, state, reason in (
        ("v0.5.7", NOT_APPLICABLE, "no such graph"),
        ("v0.5.8.post1", NOT_APPLICABLE, ""),
        ("v0.5.9", NOT_RUN, ""),  # the queue brings it
        ("v0.5.11", STATES.UPSTREAM, ""),
        ("v0.5.13.post1", NOT_RUN, ""),  # the queue repairs it
    ):
        shown = matrix.expected(queue, PINS.find(tag), feature)
        assert (shown.state, shown.reason) == (state, reason)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[graphs", "is not TOML: "),
        ("[graphs.one]\nrepair = []", "Object contains unknown field `repair` - at `$.graphs"),
        ('[[tables]]\ntitle = "a"\ngraphs = ["two"]\nfamilies = {}', "has no [graphs.two]"),
        (
            '[graphs.one]\n[[tables]]\ntitle = "a"\ngraphs = ["one"]\n'
            'families.llama = { models = ["llama"], since = { lama = "0.5.6" } }',
            "has a family without lama, and says since when it is known",
        ),
        ('[[tables]]\ntitle = "a"\nfamilies.one = {}', "missing required field `models`"),
    ],
)
def test_cells_that_cannot_be_read_are_refused(tmp_path, text, said):
    atomic.write(tmp_path / cells.FILE, text.encode())
    with pytest.raises(Refused, match="evidence/matrix.toml: .*bad-matrix") as refused:
        cells.load(tmp_path)
    assert said in str(refused.value)


def test_what_tests_gpu_says_of_itself_is_so():
    asked = (
        "import sys; sys.path.insert(0, 'tests/gpu'); import harness, json, models, modes;"
        " print(json.dumps([[*models.MODELS], [*modes.ALL], harness.identity()]))"
    )
    done = fakes.run(sys.executable, "-c", asked, cwd=ROOT, check=True)
    said = harness.load(ROOT)
    known = [list(said.models), list(said.modes), harness.identity(ROOT)]
    assert json.loads(done.stdout) == known


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# drawn, so", "# in other words, so", True),
        ('"""Tokens."""', '"""Other tokens.\n\nAnd why."""', True),
        ("return 1", "return 2", False),
    ],
)
def test_rules_are_the_same_while_their_code_is(tmp_path, old, new, same):
    """Editing a comment made all rows those of an earlier harness."""
    text = '"""Rules."""\n\n\ndef agree():\n    """Tokens."""\n    return 1  # drawn, so\n'
    folder = tmp_path / harness.FOLDER
    atomic.write(folder / "rules.py", text.encode())
    known = {"files": ["rules.py"], "models": [], "modes": []}
    atomic.write(tmp_path / harness.FILE, json.dumps(known).encode())
    before = harness.identity(tmp_path)
    assert old in text
    atomic.write(folder / "rules.py", text.replace(old, new).encode())
    assert (harness.identity(tmp_path) == before) is same


@pytest.fixture
def project(tmp_path):
    """The real queue without evidence."""
    (tmp_path / "evidence").mkdir()
    for name in ("series", "patches", "overlay", "upstream", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / cells.FILE, tmp_path / cells.FILE)
    return tmp_path


def every_cell(tag: str, **changes) -> list[Row]:
    """A passed run of each model and mode that the matrix asks of a release."""
    of = [proofs(feature, tag, **changes) for feature in CELLS.features if not feature.asked]
    return [row for rows in of for row in rows]


def test_a_release_is_left_to_run_until_each_of_its_cells_has_a_run_of_today(project):
    rows = every_cell("v0.5.9")
    assert "v0.5.9" in matrix.left_to_run(project, matrix.matrix(project, PINS))
    results.save(project, rows)
    left = matrix.left_to_run(project, matrix.matrix(project, PINS))
    assert "v0.5.9" not in left and left[0] == PINS.all[-1].tag
    for changed in ([replace(rows[0], **OLD), *rows[1:]], rows[1:]):
        results.save(project, changed)
        assert "v0.5.9" in matrix.left_to_run(project, matrix.matrix(project, PINS))


def test_a_tenth_of_what_holds_for_its_files_alone_is_drawn(project, monkeypatch):
    monkeypatch.setattr(Validity, "same_files", lambda self, row: True)
    rows = [replace(proofs()[0], model=f"model {number}") for number in range(100)]
    results.save(project, rows)
    assert matrix.drawn(project, PINS) == {}
    results.save(project, [replace(row, **OLD) for row in rows])
    [(tag, models)] = matrix.drawn(project, PINS).items()
    assert tag == "v0.5.9" and 3 < len(models) < 20
    monkeypatch.setattr(Validity, "same_files", lambda self, row: False)
    assert matrix.drawn(project, PINS) == {}
