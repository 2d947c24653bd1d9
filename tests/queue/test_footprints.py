"""A run is about today's queue while the files on which it depended are the same: errors planted
inside of its footprint alone change that."""

import lzma
import os
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
from fakes import ROOT, RUNNER
from msgspec.structs import replace
from test_results import ROW, result, run, take

from evidence import footprints, harness, incoming, matrix, results
from evidence.footprints import Tree, changed, footprint
from patchqueue.applying.apply import load_queue
from patchqueue.queue.series import PROVENANCE
from patchqueue.upstream import pins

WATCH = ROOT / "tests/gpu/watch"
PATHS = [f"python/sglang/{name}" for name in ("__init__.py", "a.py", "b/__init__.py", "data.json")]
LAID = {"python/sglang/a.py": b'"""Doc."""\nx = 1  # one\n', "python/sglang/new.py": b"y = 2\n"}
TREE = Tree(tuple(PATHS), LAID)
NOTES = ["m sglang", "m sglang.a", "m sglang.later", "o sglang/data.json"]


def tree(**laid: bytes | None) -> Tree:
    """The tree with other laid files, by their names; None: without that one."""
    changes = {f"python/sglang/{name}.py": content for name, content in laid.items()}
    kept = {path: text for path, text in (LAID | changes).items() if text is not None}
    return Tree(TREE.pristine, kept)


@pytest.mark.parametrize(
    ("laid", "why"),
    [
        ({}, ""),
        ({"new": b"raise SystemExit\n"}, ""),  # laid, and not loaded by the run
        ({"a": b'"""Another."""\n\n# why\nx = 1\n'}, ""),
        ({"a": b"x = 3\n"}, "python/sglang/a.py has changed"),
        ({"a": None}, "python/sglang/a.py is patched no more"),
        ({"__init__": b"z = 1\n"}, "python/sglang/__init__.py is patched since"),
        ({"b/__init__": b"z = 1\n"}, ""),
        ({"later": b"z = 1\n"}, "python/sglang/later.py is new"),
        ({"later/__init__": b"z = 1\n"}, "python/sglang/later/__init__.py is new"),
    ],
)
def test_a_row_holds_while_what_was_loaded_is_the_same(laid, why):
    assert changed(tree(**laid), footprint(TREE, NOTES)) == why


def test_code_is_read_where_bytes_differ_alone(monkeypatch):
    """Reading the files of 19 releases takes 40 s."""
    then = footprint(TREE, NOTES)
    footprints.digest.cache_clear()
    monkeypatch.setattr(harness, "code", lambda content: pytest.fail("read"))
    assert changed(tree(new=b"y = 3\n"), then) == ""
    with pytest.raises(pytest.fail.Exception):
        changed(tree(a=b"x = 9  # that nobody has read\n"), then)


def test_a_file_that_was_opened_counts_by_its_bytes_unless_it_lists_the_patches():
    """Triton reads the source of its kernels."""
    then = footprint(TREE, [*NOTES, "o sglang/a.py"])
    assert changed(TREE, then) == ""
    assert changed(tree(a=b"x = 1\n"), then) == "python/sglang/a.py has changed"
    now = Tree(TREE.pristine, LAID | {"python/sglang/data.json": b"{}"})
    assert changed(now, footprint(TREE, NOTES)) == "python/sglang/data.json is patched since"
    assert changed(now, footprint(TREE, NOTES[:-1])) == ""

    # the list of all patches is another one with each change: no row would outlive its tree
    now, later = (Tree(TREE.pristine, LAID | {PROVENANCE: text}) for text in (b"{}", b"[]"))
    then = footprint(now, [*NOTES, f"o {PROVENANCE.removeprefix('python/')}"])
    assert changed(later, then) == ""
    assert changed(later, replace(then, laid={**then.laid, PROVENANCE: "bytes:0"})) == ""


ENGINE = """
import multiprocessing, sys
def child():
    import sglang.srt.steps
def main():
    import sglang.srt.runner
    try:
        import sglang.srt.later
    except ImportError:
        pass
    open(sglang.srt.runner.__file__).close()
    context = multiprocessing.get_context(sys.argv[1])
    process = context.Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
if __name__ == "__main__":
    main()
"""


def ran(package: Path, tmp_path: Path, method: str = "spawn") -> tuple[int, list[str]]:
    """Exit code and notes of an engine of two processes."""
    (tmp_path / "engine.py").write_text(ENGINE)
    notes = tmp_path / "engine.watch.files"
    notes.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (WATCH, package))),
        "PREFILL_WATCH": str(tmp_path / "engine.watch"),
        "PREFILL_FILES": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([sys.executable, str(tmp_path / "engine.py"), method], env=environment)
    return done.returncode, notes.read_text().splitlines()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_every_process_notes_what_it_loads(applied, tmp_path, method):
    code, notes = ran(applied.tree / "python", tmp_path, method)
    assert code == 0
    assert {"m sglang", "m sglang.srt.runner", "m sglang.srt.later"} <= set(notes)
    assert {"o sglang/srt/runner.py", "m sglang.srt.steps"} <= set(notes)
    assert not [note for note in notes if ".pyc" in note or "multiprocessing" in note]


def test_a_planted_error_fails_the_run_where_the_footprint_says_so(applied, tmp_path):
    """Canaries: in a file outside of the footprint, and in one inside of it."""
    package = applied.tree / "python"
    _, notes = ran(package, tmp_path)
    now = footprints.tree_of(load_queue(applied.root), applied.pins.find(fakes.TAG))
    then = footprint(now, notes)
    assert changed(now, then) == ""
    for path in now.laid:
        if path.endswith(".py"):
            file = applied.tree / path
            before = file.read_bytes()
            file.write_bytes(b"raise RuntimeError\n")
            code, _ = ran(package, tmp_path)
            planted = Tree(now.pristine, {**now.laid, path: file.read_bytes()})
            assert bool(code) == bool(changed(planted, then)), path
            file.write_bytes(before)
    assert any(changed(Tree(now.pristine, {**now.laid, path: b"0"}), then) for path in now.laid)
    assert RUNNER in then.laid


def taken(project, tmp_path, **changes) -> list[results.Row]:
    """The rows after a result with notes."""
    own = ["m sglang.srt.runner"]
    runs = [run("reference", loaded=own), run("eager", loaded=own, **changes.pop("run", {}))]
    about = {"loaded": ["m sglang"], "harness": harness.identity(project.root)}
    gathered = take(project, tmp_path, result(project, runs=runs, **about, **changes))
    assert gathered.fate is incoming.Fate.TAKEN, gathered.why
    return results.load(project.root)


def test_a_proof_keeps_its_footprint_and_its_log_no_notes(measured, tmp_path):
    rows = taken(measured, tmp_path)
    assert all(RUNNER in row.footprint.laid for row in rows)
    log = lzma.decompress((measured.root / results.raw_file(rows[0].raw)).read_bytes())
    assert b'"mode": "eager"' in log and b"sglang.srt.runner" not in log


def test_one_contradiction_drops_a_release_to_its_whole_tree(measured, tmp_path):
    rows = taken(measured, tmp_path)
    assert all(RUNNER in row.footprint.laid for row in rows)
    old = [replace(row, queue="sha256:earlier") for row in rows]
    results.save(measured.root, old)
    rows = taken(measured, tmp_path, run={"verdict": "failed"}, date="2030-01-03")
    assert [row.verdict for row in rows if row.name == "eager"] == ["failed"]
    results.save(measured.root, [*old, replace(old[0], model="two")])
    rows = taken(measured, tmp_path, run={"verdict": "failed"}, date="2030-01-03")
    assert [row.footprint for row in rows if row.model == "two"] == [None]


def test_a_cell_says_that_the_files_are_the_same(monkeypatch):
    """A row about an earlier tree holds where its footprint does, by today's rules alone."""
    monkeypatch.setattr(footprints, "tree_of", lambda queue, pin: TREE)
    known = pins.load(ROOT)
    today = known.find("v0.5.9").patched
    validity = footprints.Validity(today, "sha256:rules")
    old = replace(ROW, queue="sha256:old", footprint=footprint(TREE, NOTES))
    assert validity.holds(replace(ROW, queue=today)) and not validity.holds(old)
    other = replace(old, footprint=footprint(tree(a=b"x = 3\n"), NOTES))
    old, other, ruled = footprints.compared(
        ROOT, known, [old, other, replace(old, rules="sha256:other")], "sha256:rules"
    )
    assert validity.holds(old) and validity.same_files(old) and old.same_as == today
    assert not validity.holds(replace(old, footprint=None))
    assert not validity.holds(other) and not validity.holds(ruled)
    assert (other.differs_from, ruled.differs_from) == (today, "")
    monkeypatch.setattr(footprints, "tree_of", lambda queue, pin: pytest.fail("compared again"))
    assert footprints.compared(ROOT, known, [old, other], "sha256:rules") == [old, other]
    assert "same files" in matrix.place(old, same_files=True)
