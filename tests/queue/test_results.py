"""Results are taken of today's tree alone. Of two rows about one subject the heavier stays."""

import itertools
import json
import lzma
from pathlib import Path

import pytest
from fakes import ROOT, TAG, VERSION
from msgspec.structs import replace

from evidence import incoming, results
from evidence.incoming import Fate
from evidence.results import Footprint, Load, Row
from patchqueue.outcome import Refused

RULES = "sha256:rules"


def result(project, **changes) -> dict:
    """What a host would write about the project's tree as it is now."""
    record = project.apply().record
    return {
        "schema": 1,
        "version": VERSION,
        "tag": TAG,
        "tree": record["tree"]["after"],
        "tree_untouched": True,
        "date": "2030-01-02",
        "gpu": {"name": "NVIDIA Fake 1"},
        "torch": {"version": "2.11.0+cu130", "pinned": "2.9.1", "off_pin": True},
        "harness": None,
        "runs": [run("reference"), run("eager", why="see /tmp/there/log.txt")],
    } | changes


def run(mode: str, verdict: str = "passed", model: str = "one", **more) -> dict:
    return {"model": model, "mode": mode, "verdict": verdict, "why": "", "seconds": 9} | more


def visit(tree: str, mode: str, first: list[float], rate: float, **more) -> dict:
    """An engine of gain.json."""
    measured = {"first_token_ms": {"1x64": {"all": first}}, "loads": [{"tokens_per_s": rate}]}
    measured |= {"profile": {"1x64": {"busy_ms": 5.0}}, "verdict": "passed"}
    return {"tree": tree, "mode": mode} | measured | more


def times(project, *visits: dict, **changes) -> dict:
    about = {"model": "One", "gain": {"traffic": []}, "floor_ms": {"1x64": 4.0}}
    return result(project, runs=list(visits), **about) | changes


def take(project, tmp_path: Path, found: dict, name: str = incoming.PROOF, **options):
    file = tmp_path / name
    file.write_text(json.dumps(found))
    [gathered] = incoming.take(project.root, project.pins, [file], **options)
    return gathered


def test_a_proof_becomes_a_row_a_run_and_a_log_without_its_hosts_paths(measured, tmp_path):
    assert take(measured, tmp_path, result(measured)).fate is Fate.TAKEN
    eager, reference = results.load(measured.root)
    assert (eager.name, reference.name) == ("eager", "reference")
    assert (eager.model, eager.torch, eager.torch_pin) == ("one", "2.11.0", "2.9.1")
    log = lzma.decompress((measured.root / results.raw_file(eager.raw)).read_bytes())
    assert b"see \\u2026" in log and b"/tmp/there" not in log


def test_a_later_result_replaces_a_row_and_its_log(measured, tmp_path):
    take(measured, tmp_path, result(measured))
    later = result(measured, date="2030-01-03")
    assert take(measured, tmp_path, later).fate is Fate.TAKEN
    assert {row.date for row in results.load(measured.root)} == {"2030-01-03"}
    assert len([*(measured.root / results.RAW).iterdir()]) == 1
    assert take(measured, tmp_path, result(measured)).fate is Fate.SUPERSEDED
    assert {row.date for row in results.load(measured.root)} == {"2030-01-03"}
    for changes in (  # other models, modes, GPUs and attentions stay beside
        {"gpu": {"name": "NVIDIA Fake 2"}},
        {"attention": "fa3"},
        {"runs": [run("reference", model="two"), run("piecewise", model="two")]},
    ):
        take(measured, tmp_path, result(measured, **changes))
    assert len(results.load(measured.root)) == 8


def test_a_file_that_is_refused_keeps_no_other_out(measured, tmp_path):
    """A failed run's answers may be no numbers."""
    check = {"good": False, "numbers": {"worst": float("nan")}}
    runs = [run("reference"), run("piecewise", "failed", checks=[check])]
    files = [tmp_path / name / incoming.PROOF for name in ("bad", "good")]
    for file, text in zip(files, ("{", json.dumps(result(measured, runs=runs))), strict=True):
        file.parent.mkdir()
        file.write_text(text)
    gathered = incoming.take(measured.root, measured.pins, files)
    assert [one.fate for one in gathered] == [Fate.REFUSED, Fate.TAKEN]
    assert "is no JSON" in gathered[0].why
    assert incoming.found(measured.root, tmp_path) == files


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tree_untouched": False}, "touched-tree"),
        ({"tree": "sha256:" + "0" * 64}, "stale-evidence"),
        ({"date": "soon"}, "bad-evidence"),
        ({"schema": 2}, "bad-evidence"),
        ({"runs": [run("piecewise")]}, "without its reference"),
        ({"runs": [run("reference", "not run"), run("eager")]}, "without its reference"),
    ],
)
def test_a_result_about_anything_else_is_refused(measured, tmp_path, changes, named):
    gathered = take(measured, tmp_path, result(measured, **changes))
    assert gathered.fate is Fate.REFUSED and named in gathered.why
    assert results.load(measured.root) == []


def edit(project, part: str) -> None:
    """Change a patch's header, or what it adds."""
    file = next((project.root / "patches").rglob("*.patch"))
    head, mark, hunks = file.read_text().partition("\n@@")
    if part == "header":
        head = head.replace("Description: ", "Description: Said better. ", 1)
    else:
        hunks = hunks.replace("\n+", "\n+ ", 1)
    file.write_text(head + mark + hunks)


@pytest.mark.parametrize(("part", "fate"), [("header", Fate.TAKEN), ("hunk", Fate.REFUSED)])
def test_a_header_can_change_behind_a_run_and_a_hunk_cannot(measured, tmp_path, part, fate):
    found = result(measured)
    edit(measured, part)
    measured.place()  # a change that is meant: its tree is pinned
    assert take(measured, tmp_path, found).fate is fate


def test_a_pass_against_a_reference_that_failed_counts_as_not_run(measured, tmp_path):
    runs = [run("reference", "failed", why="2 of 4 prompts moved"), run("eager")]
    take(measured, tmp_path, result(measured, runs=runs))
    eager, _ = results.load(measured.root)
    assert eager.verdict == "not run"
    assert eager.why == f"{results.NO_MEASURE}: 2 of 4 prompts moved"


def test_times_are_quartiles_and_medians_of_all_visits_of_a_tree(measured, tmp_path):
    found = times(
        measured,
        visit("untouched", "eager", [40, 41, 42], 100),
        visit("patched", "breakable", [10, 11, 12], 200, states="all"),
        visit("patched", "breakable", [14, 15], 300, states="all"),
        peers=[visit("", "own", [20], 150, name="vllm", version="9.9")],
    )
    take(measured, tmp_path, found, incoming.TIMES)
    rows = results.load(measured.root)
    assert [row.name for row in rows] == ["patched", "untouched", "vllm 9.9"]
    patched, untouched, _ = rows
    assert patched.first_token_ms == {"1x64": 11} and patched.input_tokens_per_s == 250
    assert patched.floor_ms == {"1x64": 4.0} and untouched.busy_ms == {"1x64": 5.0}
    assert {row.run for row in rows} == {"nvidia-fake-1.nemotron.eager-to-breakable+all"}


def test_a_run_of_times_is_replaced_as_a_whole(measured, tmp_path):
    both = [visit("untouched", "eager", [40], 1), visit("patched", "breakable", [10], 2)]
    peers = [visit("", "own", [20], 1, name="vllm", version="9.9")]
    take(measured, tmp_path, times(measured, *both, peers=peers), incoming.TIMES)
    later = times(measured, both[0], both[1], date="2030-01-03")
    take(measured, tmp_path, later, incoming.TIMES)
    assert [row.name for row in results.load(measured.root)] == ["patched", "untouched"]
    other = times(measured, both[0], visit("patched", "piecewise", [11], 2))
    take(measured, tmp_path, other, incoming.TIMES)
    assert len(results.load(measured.root)) == 4


def test_loads_are_medians_of_output_or_input_tokens(measured, tmp_path):
    def served(output: float, first: float, later: dict | None) -> dict:
        return {
            "output_tokens_per_s": output,
            "input_tokens_per_s": 10 * output,
            "first_ms": {"p50": first, "p99": 2 * first},
            "later_ms": later,
        }

    kinds = {"gsm8k": [served(5, 8, {"p50": 1})], "prefill": [served(5, 8, {})]}
    visits = [visit(tree, "eager", [], 1, traffic=kinds) for tree in ("untouched", "patched")]
    found = times(measured, *visits, gain={"traffic": ["prefill", "gsm8k"]})
    take(measured, tmp_path, found, incoming.TIMES)
    row = results.load(measured.root)[0]
    assert row.loads == {"gsm8k": Load(5, 8, 16), "prefill": Load(50, 8, 16)}
    assert row.run.endswith(".eager-to-eager.gsm8k-prefill")


ABOUT = {"kind": "proof", "release": "0.5.9", "name": "eager", "model": "one", "verdict": "passed"}
HOST = {"date": "2030-01-02", "gpu": "NVIDIA Fake", "torch": "2.9.1"}
ROW = Row(**ABOUT, **HOST, queue="sha256:now", rules=RULES)
TODAY = {"0.5.9": "sha256:now"}


@pytest.mark.parametrize(
    ("lighter", "heavier"),
    [
        ({"verdict": "not run"}, {"date": "2029-01-01"}),
        ({"queue": "sha256:old", "date": "2031-01-01"}, {}),
        ({"verdict": "not run", "why": results.NO_MEASURE, "date": "2031-01-01"}, {}),
        ({"verdict": "not run"}, {"verdict": "not run", "why": results.NO_MEASURE}),
        ({"rules": "sha256:old", "date": "2031-01-01"}, {}),
        ({"torch_pin": "2.8", "date": "2031-01-01"}, {}),
        ({}, {"date": "2030-01-03"}),
        ({}, {"verdict": "failed"}),
    ],
)
def test_the_weightier_row_stays_in_any_order(lighter, heavier):
    rows = [replace(ROW, **lighter), replace(ROW, **heavier)]
    for turned in itertools.permutations(rows):
        assert results.newest(turned, TODAY, RULES) == [rows[1]]


def test_a_row_keeps_hashes_of_16_digits(tmp_path):
    (tmp_path / results.FILE).parent.mkdir()
    whole = "sha256:" + "0123456789abcdef" * 4
    results.save(tmp_path, [replace(ROW, queue=whole, rules=whole, same_as=whole)])
    [row] = results.load(tmp_path)
    assert row.queue == row.rules == row.same_as == "sha256:0123456789abcdef"
    assert results.is_same(row.queue, whole) and not results.is_same(row.queue, whole[::-1])
    results.save(tmp_path, [row])
    assert whole not in (tmp_path / results.FILE).read_text()


def test_a_line_that_is_no_row_is_named(tmp_path):
    (tmp_path / results.FILE).parent.mkdir()
    results.save(tmp_path, [ROW])
    with (tmp_path / results.FILE).open("a") as file:
        file.write('{"kind": "proof"}\n')
    with pytest.raises(Refused, match=r"results\.jsonl:2: .*field"):
        results.load(tmp_path)


LAID = {"python/sglang/a.py": "code:1", "python/sglang/b.py": "code:2"}
OPENED = LAID | {"python/sglang/a.py": "bytes:3"}


def with_footprints(root: Path) -> list[Row]:
    """Rows of two trees of one release, and of another release, kept in this folder."""
    (root / results.FILE).parent.mkdir()
    prints = [Footprint("AQ==", LAID, ("sglang.c", "sglang.c.d")), Footprint("Ag==", OPENED)]
    rows = [replace(ROW, model=f"{n}", footprint=one) for n, one in enumerate(prints)]
    rows += [replace(rows[0], model="2", queue="sha256:old"), replace(ROW, model="3")]
    rows += [replace(rows[0], release="0.5.16", footprint=Footprint())]
    results.save(root, rows)
    return sorted(rows, key=results.order)


def test_what_footprints_of_one_release_share_is_kept_once(tmp_path):
    rows = with_footprints(tmp_path)
    assert results.load(tmp_path) == rows
    text = (tmp_path / results.FILE).read_text()
    assert text.count("b.py") == text.count("sglang.c.d") == 1
    assert [text.count(f"a.py {one}") for one in ("code:1", "bytes:3")] == [1, 1]


def test_files_that_no_footprint_names_are_dropped(tmp_path):
    kept = [row for row in with_footprints(tmp_path) if row.release == "0.5.9"]
    results.save(tmp_path, [replace(row, footprint=None) for row in kept[:1]] + kept[1:2])
    text = (tmp_path / results.FILE).read_text()
    assert text.count('"kind":"files"') == 1 and "bytes:3" in text
    assert "code:1" not in text and "sglang.c" not in text


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("b.py code:2", "b.py code:4", r"\.jsonl:4: .* refers to \w{16}, which is no line"),
        ('"Fg=="]', '"Fg="]', r"\.jsonl:5: .* refers to"),
        ('"items"', '"names"', r"\.jsonl:1: .*names"),
    ],
)
def test_a_footprint_that_refers_to_no_line_is_named(tmp_path, old, new, named):
    with_footprints(tmp_path)
    file = tmp_path / results.FILE
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(Refused, match=named):
        results.load(tmp_path)


def test_every_log_that_a_row_names_is_there():
    """And they take at most 1 MB."""
    rows, logs = results.load(ROOT), [*(ROOT / results.RAW).iterdir()]
    assert sum(file.stat().st_size for file in logs) <= 1_000_000
    before = {row.raw for row in rows if row.date < "2026-11-27"}
    for row in rows:
        assert row.raw in before or (ROOT / results.raw_file(row.raw)).is_file()


def test_an_answer_replaces_those_of_its_own_model_alone(measured, tmp_path):
    """A next turn with drafts took the place of NemotronH's."""
    for model, verdict in (("one", "passed"), ("one-mtp", "failed"), ("one", "failed")):
        date = "2030-01-02" if model == "one-mtp" else f"2030-01-0{3 if verdict == 'failed' else 1}"
        found = result(measured, without="", runs=[run("", verdict, model)], date=date)
        assert take(measured, tmp_path, found, "mine.json").fate is Fate.TAKEN
    kept = {row.model: (row.verdict, row.date) for row in results.load(measured.root)}
    assert kept == {"one": ("failed", "2030-01-03"), "one-mtp": ("failed", "2030-01-02")}


def test_an_answer_is_taken_by_the_name_of_its_script(measured, tmp_path):
    table = '[[tables]]\ntitle = "a"\nfamilies.one = { question = "mine", models = ["one"] }\n'
    measured.write("evidence/matrix.toml", table)
    found = result(measured, without="", runs=[run("", "failed", why="2 of 3")])
    assert take(measured, tmp_path, found, "mine.json").fate is Fate.TAKEN
    [row] = results.load(measured.root)
    assert (row.kind, row.name, row.verdict, row.why) == ("question", "mine", "failed", "2 of 3")
    assert incoming.found(measured.root, tmp_path) == [tmp_path / "mine.json"]
