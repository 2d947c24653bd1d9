"""The page of figures is made from what was measured, all of it, and says what misses its limit."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest
from msgspec import convert

from evidence import figures, store
from evidence.figures import Measured
from evidence.measure import queue as queue_figures
from evidence.pages import figures as figurespage
from evidence.plots import figures as plots
from evidence.records import Figures, Record
from patchqueue.outcome import Refused
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]

MACHINE = {"cpus": 2, "load": [0.1], "python": "3.11.7", "system": "one"}


def timed(name: str = "apply v0.5.9, warm cache", middle: float = 2.5, met: bool = True) -> dict:
    return {
        "name": name,
        "shown": f"{middle:.2f} s",
        "limit": "< 5 s",
        "met": met,
        "details": {
            "seconds": [2.4, middle, 9.0],
            "median": middle,
            "cpu seconds of one": 2.2,
            "load": 0.1,
        },
    }


KILLED = {
    "name": "apply killed",
    "shown": "3 of 3 right",
    "limit": "3",
    "met": True,
    "details": {
        "hit": 2,
        "moments": [
            {"second": 0.1, "was running": True, "tree then": "absent"},
            {"second": 1, "was running": True, "tree then": "applied"},
            {"second": 2, "was running": False, "tree then": "applied"},
        ],
    },
}


def tool(*figures: dict, revision: str = "v0.5.9", **machine) -> dict:
    return {"revision": revision, "machine": MACHINE | machine, "figures": list(figures)}


def proof(**changes) -> dict:
    captured = [
        {"what": "cuda graph", "seconds": 7.0, "gb": 0},
        {"what": "piecewise CUDA graph", "seconds": 3.0, "gb": 0},
    ]
    runs = [
        {
            "model": model,
            "mode": mode,
            "verdict": verdict,
            "why": "",
            "captured": captured,
            "checks": [{"good": verdict == "passed"}],
        }
        for model, mode, verdict in (
            ("llama", "reference", "passed"),
            ("llama", "piecewise", "passed"),
            ("llama", "breakable", "failed"),
            ("new-model", "breakable", "not applicable"),
        )
    ]
    torch = {"version": "2.9.1", "pinned": "2.9.1", "off_pin": False}
    return {
        "version": "0.5.9",
        "tag": "v0.5.9",
        "changes": "sha256:now",
        "gpu": {"name": "NVIDIA Fake"},
        "torch": torch,
        "capture": [16, 32],
        "runs": runs,
    } | changes


def measured(tool_: dict | None = None, *proofs: dict) -> Measured:
    known = [fakes.recorded(one, Record) for one in proofs]
    return Measured(tool_ and convert(tool_, Figures), known, [], {"v0.5.9": "sha256:now"})


def test_a_figure_that_misses_its_limit_says_so():
    text = figurespage.page(measured(tool(timed(), timed("check", 7.0, met=False), KILLED)), set())
    assert (
        "| apply v0.5.9, warm cache | 2.50 s | < 5 s |" in text
        and "| check | 7.00 s, **missed** | < 5 s |" in text
    )
    assert "0.1 processes wanted to run" in text and "2 of the 3 kills came while it ran" in text


def test_proofs_are_counted_and_earlier_ones_told():
    later, earlier = proof(), proof(changes="sha256:before", gpu={"name": "NVIDIA Old"})
    text = figurespage.proof_table(measured(None, later, earlier))
    assert (
        "| 0.5.9 on NVIDIA Fake | 1 | 1 | 1 | 0 | 0 | 2 of 4 |" in text
        and "| 0.5.9 on NVIDIA Old | 1 | 1 | 1 | 0 | 3 | 2 of 4 |" in text
    )
    merged = proof()
    # one run of a file that several hosts wrote
    merged["runs"][1]["host"] = {"changes": "sha256:before"}
    assert "| 1 | 1 | 1 | 0 | 1 |" in figurespage.proof_table(measured(None, merged))


def test_graphs_for_decoding_are_no_part_of_a_prefill_graphs_capture():
    found = figures.captures(measured(None, proof()))
    assert {one.mode: one.seconds for one in found} == {"breakable": 3.0, "piecewise": 3.0}
    assert all("2 sizes" in one.what for one in found)


def test_where_nothing_was_measured_nothing_is_claimed():
    assert "##" not in figurespage.page(measured(), set())


def test_only_plots_that_there_are_are_shown():
    one = measured(tool(timed()), proof())
    assert "](figures-tool.png)" in figurespage.page(
        one, {"tool"}
    ) and "](figures-proofs.png)" not in figurespage.page(one, {"tool"})


def test_the_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    real = figures.load(ROOT)
    drawn = [
        plots.draw(found, tmp_path)
        for found in (measured(tool(timed(), KILLED), proof()), measured(tool(KILLED)), real)
    ]
    assert all(path.stat().st_size > 10_000 for paths in drawn for path in paths)
    assert {path.name for path in drawn[-1]} == {f"figures-{name}.png" for name in plots.DRAWN}
    assert plots.draw(measured(), tmp_path / "none") == ()


def test_the_page_is_that_of_today():
    now = figures.load(ROOT)
    assert (ROOT / figurespage.PAGE).read_text(encoding="utf-8") == figurespage.page(
        now, set(plots.DRAWN)
    ), "`scripts/nox figures --page` writes it"


def test_every_proof_and_bench_is_on_the_page():
    text = (ROOT / figurespage.PAGE).read_text(encoding="utf-8")
    for pin in pins.load(ROOT).all:
        assert all(f"| {one.title} |" in text for one in store.proofs(ROOT, str(pin.version)))


@pytest.mark.parametrize("text", ["{", "[]", '{"figures": [{}]}', '{"figures": 3}'])
def test_figures_that_are_none_are_refused(tmp_path, text):
    store.put(tmp_path / figures.TOOL, text)
    with pytest.raises(Refused, match="bad-figures"):
        figures.load_tool(tmp_path / figures.TOOL)


def test_what_was_not_measured_again_stays():
    before, *others = (
        convert(one, Figures)
        for one in (
            tool(timed("apply", 2.0), KILLED),
            tool(timed(), revision="v0.5.11"),
            tool(timed(), cpus=64),
        )
    )
    now = convert(tool(timed("apply", 3.0), timed("new", 1.0), load=[9]), Figures)
    found = queue_figures.beside(before, now)
    assert [(one.name, one.shown) for one in found.figures] == [
        ("apply", "3.00 s"),
        ("apply killed", "3 of 3 right"),
        ("new", "1.00 s"),
    ]
    for other in others:
        assert queue_figures.beside(before, other) == other
    assert queue_figures.beside(None, before) == before


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ({"tree then": "applied"}, "applied"),
        ({"then": {"patched files": 0, "pristine files": 9, "neither": 0}}, "absent"),
        ({"then": {"patched files": 9, "pristine files": 0, "neither": 0}}, "applied"),
        ({"then": {"patched files": 4, "pristine files": 5, "neither": 0}}, "mixed"),
        ({"then": {"patched files": 4, "pristine files": 4, "neither": 1}}, "broken"),
    ],
)
def test_what_a_kill_left(moment, left):
    assert figures.tree_then(moment) == left


def test_what_is_rebased_onto_is_no_pin():
    """A rebase onto a pinned release says so, and measures nothing."""
    assert f"v{queue_figures.UNPINNED}" not in {pin.tag for pin in pins.load(ROOT).all}
