"""What docs/bench.md says about the untouched and the patched release, from a made gain."""

from __future__ import annotations

import json
from pathlib import Path

import fakes
import pytest
from msgspec import structs

from evidence import gains, store, ways
from evidence.pages import bench as benchpage
from evidence.plots import gain as plot
from evidence.records import Gain
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]

SLOW, FAST = [200.0, 201.0, 202.0, 204.0, 210.0], [136.0, 137.0, 137.5, 138.0, 140.0]
SAME = [41.0, 44.0, 44.0, 46.0, 50.0]


def visit(tree: str, long: list[float], scan_ms: float, **more) -> dict:
    """One engine's part: 1x4096 as given, 1x512 alike in both trees."""
    kernels = {
        "matrix products": {"ms": 92.0, "launches": 100},
        "_chunk_scan_fwd_kernel": {"ms": scan_ms, "launches": 27},
    }
    shapes = {"1x512": (SAME, 12.0 + scan_ms / 8), "1x4096": (long, 92.0 + scan_ms)}
    return {
        "tree": tree,
        "visit": 1,
        "mode": "eager",
        "mode_why": "",
        "measure": f"gain {tree}",
        "verdict": "passed",
        "why": "",
        "captured": [],
        "first_token_ms": {
            shape: {"fastest": min(spans), "all": spans} for shape, (spans, _) in shapes.items()
        },
        "loads": [
            {"round": number, "tokens_per_s": 4096e3 / min(long) + number, "prefills": 32}
            for number in range(3)
        ],
        "profile": {
            shape: {
                "busy_ms": busy,
                "launches": 640.0,
                "forwards": 1.0,
                "groups": kernels if shape == "1x4096" else {},
            }
            for shape, (_, busy) in shapes.items()
        },
    } | more


def gain(**more) -> dict:
    return {
        "schema": 1,
        "queue": "q",
        "tree": "t",
        "tree_untouched": True,
        "version": "0.5.9",
        "model": "Nano, as published",
        "subject": "nemotron",
        "changes": "c",
        "gpu": {"name": ways.USUAL_GPU, "driver": "1"},
        "torch": {"version": "2", "pinned": "1", "off_pin": True},
        "python": "3",
        "date": "d",
        "queue_release": 1,
        "cpus": 16,
        "gain": {
            "shapes": ["1x512", "1x4096", "8x64"],
            "rounds": 5,
            "load": {"prompt": 4096, "in_flight": 16},
        },
        "rate": {"size": 8192, "tflops": 690.0},
        "floor_ms": {"1x512": 11.5, "1x4096": 91.6},
        "runs": [
            visit("untouched", SLOW, 60.0, mode_why="the release has no breakable graph"),
            visit("patched", FAST, 10.0, mode="breakable"),
        ],
    } | more


def of(found: dict) -> Gain:
    return fakes.recorded(found, Gain)


def told(found: dict) -> str:
    return benchpage.page([], False, [of(found)])


@pytest.fixture
def text() -> str:
    return benchpage.page([], False, [of(gain())], [*plot.NAMES])


def test_what_a_user_gains_is_one_paragraph(text):
    assert (
        "With the patches 1 × 4096 tokens have their first token after 137 ms "
        "instead of 201 (-31.8 %)." in text
    )
    assert "takes 30119 tokens a second instead of 20481: 1.47 times as many." in text
    assert "The GPU is busy for 102 ms of it, 1.11 times the floor of 92 ms." in text


def test_every_shape_has_its_row_before_and_after(text):
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert ["1 × 4096", "200.0 / 201.0 / 202.0", "136.0 / 137.0 / 137.5", "-31.8 %"] in cells
    assert ["1 × 512", "41.0 / 44.0 / 44.0", "41.0 / 44.0 / 44.0", "none shown"] in cells and [
        "8 × 64",
        "-",
        "-",
        "-",
    ] in cells
    assert ["1 × 4096", "152.0", "102.0", "-32.9 %", "91.6", "640 → 640"] in cells
    assert ["median of all loads", "20481", "30119", "+47.1 %"] in cells
    assert ["_chunk_scan_fwd_kernel", "60.00", "10.00"] in cells and [
        "everything else",
        "0.00",
        "0.00",
    ] in cells
    assert max(map(len, rows)) <= 80


def test_a_kernel_of_a_long_name_fits_the_terminal():
    found = gain()
    long = "kernel_" + "of_a_compiler_that_writes_all_its_types_" * 4
    for run in found["runs"]:
        groups = run["profile"]["1x4096"]["groups"]
        groups[long] = groups.pop("_chunk_scan_fwd_kernel")
    rows = [line for line in told(found).splitlines() if line.startswith("| ")]
    assert max(map(len, rows)) <= 80
    assert any(row.startswith("| kernel_of_a_compiler_") and "…" in row for row in rows)


def test_prefills_back_to_back_have_their_rows_where_they_were_measured(text):
    found = gain()
    for run, ms in zip(found["runs"], (187.0, 102.0), strict=True):
        run["back_to_back"] = {"1x4096": {"ms": ms, "times": 20}}
    row = next(line for line in told(found).splitlines() if "187.0" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["1 × 4096", "187.0", "102.0", "-45.5 %"]
    assert "back to back" in told(found) and "back to back" not in text


def test_how_it_ran_is_said(text):
    assert (
        "Untouched: eager prefill (the release has no breakable graph). "
        "Patched: the breakable graph." in text
    )
    assert (
        "ran at 690 TFLOP/s" in text and "off its pin" in text and "had 16 hardware threads" in text
    )
    assert text.startswith("# What the queue is worth") and "![Time to the first token" in text


def test_the_first_answer_is_told_where_nothing_was_compiled_before():
    found = gain()
    for run, waited in zip(found["runs"], (50.2, 9.6), strict=True):
        run["first_answer_s"] = waited
    assert "first answer" not in told(found)
    found["gain"]["own_kernels"] = True
    assert "the first answer took 50 s untouched, and 10 s patched." in told(found)
    del found["runs"][1]["first_answer_s"]
    assert "first answer" not in told(found)


def test_a_release_with_another_attention_counts_apart():
    """Its times and those of the usual attention are in no row and no panel together."""
    usual, other = gain(), gain()
    other["attention"] = "fa3"
    found = ways.timed([of(usual), of(other)])
    assert [name for _, name in found] == [usual["version"], f"{usual['version']}, FA3"]


def test_a_release_on_another_gpu_counts_apart():
    usual, other = gain(), gain()
    usual["gpu"]["name"], other["gpu"]["name"] = ways.USUAL_GPU, "NVIDIA H100 80GB HBM3"
    found = ways.timed([of(usual), of(other)])
    assert [name for _, name in found] == [usual["version"], f"{usual['version']}, H100"]


def test_what_was_asked_beyond_the_defaults_is_told():
    found = gain()
    assert "STATES" not in told(found) and "idle" not in told(found)
    found["runs"][0]["states"] = "break"
    assert "states" not in gains.title(of(found))
    found["runs"][1]["states"], found["gain"]["pause_s"] = "capture", 0.03
    assert "had `SGLANG_PREFILL_GRAPH_STATES=capture`." in told(found)
    assert "was idle for 30 ms before each call." in told(found)
    assert gains.title(of(found)).endswith(", states in the graph")
    found["attention"] = "fa3"
    assert gains.title(of(found)).endswith(", states in the graph, FlashAttention 3")


def test_the_clock_under_load_is_told():
    found = gain()
    assert "MHz" not in told(found)
    for run, mhz in zip(found["runs"], (1845, 1590.5), strict=True):
        run["clock"] = {"samples": 9, "sm_mhz": mhz, "watts": 690.4, "power_capped": 0.97}
    said = told(found)
    assert "ran at 1845 MHz untouched, and at 1590 patched, at 690 W." in said
    assert "in 97 and 97 % of the samples." in said and "of a load's time" not in said
    for run, busy in zip(found["runs"], (0.972, 0.963), strict=True):
        run["load_profile"] = {"busy": busy}
    assert "It was busy for 97.2 % and 96.3 % of a load's time." in told(found)
    for none in ({"samples": 0, "why": "no such field"}, {"why": "no nvidia-smi"}):
        found["runs"][0]["clock"] = none
        assert "MHz" not in told(found)


def test_visits_of_one_tree_count_together():
    more = [
        visit("untouched", [one - 1 for one in SLOW], 62.0),
        visit("patched", FAST, 12.0),
        visit("patched", FAST, 10.0),
        visit("untouched", SLOW, 60.0),
    ]
    found = gain(runs=more)
    assert (
        gains.calls(of(found), "untouched", "1x4096").fastest == 199
        and gains.busy_ms(of(found), "patched", "1x4096") == 103
    )
    assert gains.groups(of(found), "untouched", "1x4096")["_chunk_scan_fwd_kernel"] == 61


def timed(spans: list[float], busy_ms: float, launches: float = 640.0) -> dict:
    """Both trees, the untouched one with calls of 10 to 13 ms, 8 of them GPU-busy."""
    found = gain()
    numbers = [([10.0, 11.0, 13.0], 8.0, 640.0), (spans, busy_ms, launches)]
    for run, (calls, busy, count) in zip(found["runs"], numbers, strict=True):
        run["first_token_ms"]["1x4096"] = {"all": calls}
        run["profile"]["1x4096"] |= {"busy_ms": busy, "launches": count}
    return found


@pytest.mark.parametrize(
    ("spans", "busy_ms", "launches", "said"),
    [
        ([9.8, 10.5, 12.0], 7.0, 640.0, "none shown"),
        ([8.0, 9.0, 9.5], 6.5, 640.0, "-19.0 %"),
        ([8.0, 9.0, 9.5], 7.9, 640.0, "the host"),  # as much work as before
        ([8.0, 9.0, 9.5], 9.0, 640.0, "the host"),  # more work, and yet faster
        ([8.0, 9.0, 9.5], 7.9, 600.0, "-19.0 %"),  # less to launch
        ([14.0, 15.0, 16.0], 7.9, 600.0, "the host"),  # less to launch, and yet slower
        ([14.0, 15.0, 16.0], 11.0, 640.0, "+38.1 %"),
    ],
)
def test_a_change_is_shown_where_it_is_clear_and_the_profile_accounts_for_it(
    spans, busy_ms, launches, said
):
    assert gains.shown(of(timed(spans, busy_ms, launches)), "1x4096") == said


def test_what_was_not_measured_has_no_change():
    assert gains.shown(of(gain()), "8x64") == "-" and gains.spread([]) is None


def test_quartiles_are_those_of_the_gain_itself():
    found = gains.spread([4.0, 1.0, 2.0, 3.0])
    assert (found.fastest, found.first_quartile, found.median) == (1.0, 1.75, 2.5)


def test_a_tree_that_failed_is_said():
    broken = visit(
        "patched",
        FAST,
        10.0,
        verdict="failed",
        why="start: exit code 1",
        first_token_ms={},
        loads=[],
        profile={},
    )
    text = told(gain(runs=[visit("untouched", SLOW, 60.0), broken]))
    assert "nothing can be compared" in text and "Patched failed: start: exit code 1." in text


def test_gains_come_before_graph_modes():
    assert benchpage.page([], False).endswith("Nothing was measured yet.\n")


def test_gains_are_found_where_evidence_is_kept(project):
    folder = project.root / "evidence/9.9.1"
    folder.mkdir(parents=True)
    for name, model in (("g.gain.json", "Nano"), ("g.other.gain.json", "Other")):
        kept = gain(
            version="9.9.1", model=model, subject="nemotron" if model == "Nano" else "other"
        )
        (folder / name).write_text(json.dumps(kept))
    assert [one.model for one in gains.load(project.root)] == ["Nano", "Other"]
    assert "The queue has changed since." in benchpage.of(project.root)


def test_a_call_that_was_split_is_said():
    found = gain()
    found["runs"][0]["profile"]["1x512"]["forwards"] = 1.67
    assert gains.split(of(found)) == [("untouched", "1x512", 1.67)]
    assert "Untouched, 1 × 512 took 1.67 forwards a call." in told(found)


def test_the_plots_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    written = plot.draw([of(gain())], tmp_path)
    assert [file.name for file in written] == [*plot.NAMES]
    assert all(file.stat().st_size > 8_000 for file in written)
    assert plot.draw([], tmp_path) == plot.draw([of(gain(runs=[]))], tmp_path) == []


def test_a_plot_that_has_nothing_to_show_is_not_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    runs = [visit(tree, SLOW, 60.0, profile={}) for tree in gains.TREES]
    names = [file.name for file in plot.draw([of(gain(runs=runs))], tmp_path)]
    assert names == ["gain-first-tokens.png", "gain-input-rates.png"]


def test_the_page_shows_the_plots_that_are_there(text):
    assert all(f"]({name})" in text for name in plot.NAMES)
    assert ".png" not in told(gain())


def test_the_first_tables_have_a_row_for_each_way(text):
    assert text.index("**Nano, as published**") < text.index("### 0.5.9 on NVIDIA H200")
    row = next(line for line in text.splitlines() if line.startswith("| 0.5.9"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["0.5.9", "eager → graph", "152.0 → 102.0", "1.11", "20.5 → 30.1"]


def test_the_widest_row_fits_a_terminal():
    runs = [visit("untouched", SLOW, 60.0), visit("patched", FAST, 10.0, mode="breakable")]
    runs[1]["states"] = "capture"
    rows = [row for row in told(gain(runs=runs, version="0.5.12.post1")).splitlines() if "|" in row]
    assert any("eager → graph+states" in row for row in rows) and max(map(len, rows)) <= 80


def several() -> list[Gain]:
    """A release timed eagerly, then with a graph at more lengths, then with states asked for."""
    long = {"1x64": (FAST, 9.0), "1x4096": (FAST, 99.0)}

    def longer(tree: str, **more) -> dict:
        spans = {shape: {"fastest": 136.0, "all": calls} for shape, (calls, _) in long.items()}
        return visit(tree, FAST, 9.0, first_token_ms=spans, **more)

    plan = gain()["gain"] | {"shapes": [*long, "1x512"]}
    graph = [longer("untouched"), longer("patched", mode="breakable", states="")]
    asked = [longer("untouched"), longer("patched", mode="breakable", states="all")]
    return [
        of(gain(date="2026-01-02")),
        of(gain(gain=plan, runs=graph, date="2026-01-01")),
        of(gain(gain=plan, runs=asked, date="2026-01-03", version="0.5.16")),
        of(gain(gain=plan, runs=asked, date="2026-01-03", model="Other")),
    ]


def test_each_tree_and_way_counts_once():
    """With the gain that has most lengths; a model of several releases first."""
    table = ways.timed(several())
    model = "Nano, as published"
    assert [*table] == [(model, "0.5.9"), (model, "0.5.16"), ("Other", "0.5.9")]
    old, new, _ = table.values()
    assert [one.name for one in old] == ["untouched, eager", "patched, graph"]
    assert [one.name for one in new] == ["untouched, eager", "patched, graph+states"]
    assert [ways.alone(one.gain)[0] for one in old] == [(64, "1x64")] * 2


def test_loads_of_users_are_no_way_of_prefilling():
    plan = gain()["gain"] | {"traffic": ["gsm8k"]}
    assert ways.timed([of(gain(gain=plan))]) == {}


@pytest.mark.parametrize(
    "group, kind",
    [
        ("matrix products", "matrix products"),
        ("fused_moe_kernel", "experts"),
        ("_chunk_scan_fwd_kernel", "Mamba2's scan"),
        ("_chunk_state_varlen_kernel", "Mamba2's scan"),
        ("_states_kernel", "Mamba2's scan"),
        ("chunk_fwd_kernel_o", "gated delta rule"),
        ("_causal_conv1d_fwd_kernel", "convolution"),
        ("attention", "attention"),
        ("norms", "norms and activations"),
        ("element-wise of PyTorch", "copies and element-wise"),
        ("something new", "other"),
    ],
)
def test_a_group_of_kernels_has_a_kind(group, kind):
    assert ways.kind(group) == kind


def test_kinds_share_a_call_out_whole():
    one = ways.timed([of(gain())])["Nano, as published", "0.5.9"][0]
    kinds = one.kinds("1x4096")
    assert kinds["matrix products"] == 92.0 and kinds["Mamba2's scan"] == 60.0
    assert sum(kinds.values()) == 152.0


def served(rate: float, half: float, most: float) -> list[dict]:
    """Two loads of a kind, whose medians are these."""
    return [
        {"output_tokens_per_s": rate + off, "first_ms": {"p50": half + off, "p99": most + off}}
        for off in (-1, 1)
    ]


def test_loads_of_users_are_told_by_kind(tmp_path):
    plan = gain()["gain"] | {"traffic": ["gsm8k", "agent"]}
    slow, fast = (
        dict(tree=tree, mode=mode, visit=1, measure="", verdict="passed", captured=[], why="")
        for tree, mode in (("untouched", "eager"), ("patched", "breakable"))
    )
    slow |= {"traffic": {"gsm8k": served(2400, 1340, 2230)}}
    fast |= {"traffic": {"gsm8k": served(3360, 450, 1070), "agent": served(900, 76, 203)}}
    found = gain(gain=plan, runs=[slow, fast])
    said = told(found)
    assert "Nano, breakable graph, loads of users" in said
    first = next(line for line in said.splitlines() if line.startswith("| 0.5.9"))
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert cells == ["0.5.9", "eager → graph", "2400 → 3360", "-", "- → 76"]
    row = next(line for line in said.splitlines() if line.startswith("| gsm8k"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["gsm8k", "2400 → 3360", "+40.0 %", "1340.0 → 450.0", "2230.0 → 1070.0"]
    assert any("- → 900" in line for line in said.splitlines() if line.startswith("| agent"))
    assert "GPU-busy, ms" not in said and "calls of each shape" not in said
    pin = pins.load(ROOT).find("0.5.9")
    assert store.place_of(tmp_path, pin, found).name == "nvidia-h200.breakable.traffic.gain.json"


def test_a_prefill_node_has_the_tokens_that_it_reads():
    plan = gain()["gain"] | {"traffic": ["prefill"]}
    run = dict(visit=1, measure="", verdict="passed", captured=[], why="")
    both = [("untouched", "eager", 20000), ("patched", "breakable", 36000)]
    runs = [
        run
        | {"tree": tree, "mode": mode}
        | {
            "traffic": {
                "prefill": [
                    one | {"input_tokens_per_s": rate, "later_ms": {}}
                    for one in served(4, 900, 1700)
                ]
            }
        }
        for tree, mode, rate in both
    ]
    said = told(gain(gain=plan, runs=runs))
    rows = [line for line in said.splitlines() if line.startswith("| prefill")]
    assert len(rows) == 1 and "20000 → 36000" in rows[0]
    assert "breakable graph, loads of users: prefill" in said
    assert "128 in flight" not in said, "a table with no figure"
    row = next(line for line in said.splitlines() if line.startswith("| 0.5.9"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["0.5.9", "eager → graph", "-", "20.0 → 36.0"]


def test_loads_that_were_asked_for_later_stand_beside_the_usual_ones(tmp_path):
    """A gain is kept whole: with one name for all, prompts of 8192 tokens would have taken the
    place of the loads before."""
    pin, run = pins.load(ROOT).find("0.5.9"), dict(visit=1, measure="", verdict="passed", why="")
    ran = [("untouched", "eager", 2400), ("patched", "breakable", 3600)]

    def taken(*kinds):
        plan = gain()["gain"] | {"traffic": [*kinds]}
        runs = [
            run
            | dict(tree=tree, mode=mode, captured=[])
            | {"traffic": {kind: served(rate, 1, 2) for kind in kinds}}
            for tree, mode, rate in ran
        ]
        return gain(gain=plan, runs=runs)

    usual, later = taken("gsm8k", "long"), taken("prefill", "long")
    names = [store.place_of(tmp_path, pin, one).name for one in (usual, later)]
    assert names[0].endswith(".traffic.gain.json") and names[1].endswith(".long-prefill.gain.json")
    compared = [of(one) for one in (usual, later)]
    assert benchpage.served_summary(compared, benchpage.NODE) == [
        ["0.5.9", "eager → graph", "2400 → 3600", "2.4 → 3.6"]
    ], "one row of both"
    turned = store.place_of(tmp_path, pin, taken("long", "prefill")).name
    assert turned == names[1], "the order that was typed makes no other file"


def test_a_half_figure_gives_way_to_a_whole_one_and_models_do_not_mix():
    run = dict(visit=1, measure="", verdict="passed", why="", captured=[])
    trees = [("untouched", "eager", 2400), ("patched", "breakable", 3600)]

    def taken(runs, **more):
        plan = gain()["gain"] | {"traffic": ["gsm8k", "long"]}
        ran = [
            run | dict(tree=tree, mode=mode, traffic={"long": served(rate, 1, 2)})
            for tree, mode, rate in runs
        ]
        return of(gain(gain=plan, runs=ran, **more))

    def rows(*found):
        return [row[2:] for row in benchpage.served_summary(found, benchpage.NODE[:1])]

    whole = taken(trees)
    untouched, patched = whole.runs
    half = structs.replace(whole, runs=(structs.replace(untouched, traffic={}), patched))
    assert rows(half) == [["- → 3600"]]
    assert rows(half, whole) == rows(whole, half) == [["2400 → 3600"]]
    other = taken([(tree, mode, 9 * rate) for tree, mode, rate in trees], model="Another, 8 layers")
    assert rows(whole, other) == [["2400 → 3600"], ["21600 → 32400"]]


def test_a_server_whose_time_ended_says_what_it_took():
    plan = gain()["gain"] | {"traffic": ["gsm8k", "agent"]}
    run = dict(tree="untouched", mode="eager", visit=1, measure="", captured=[])
    run |= dict(verdict="not run", why="no time was left for traffic")
    run["traffic"] = {"gsm8k": served(2400, 1340, 2230)}
    said = told(gain(gain=plan, runs=[run]))
    assert "The untouched server took 0 or 2 loads of each kind before its time ended." in said
    assert "no time was left" not in said


def test_two_modes_of_the_untouched_release_are_never_put_together(monkeypatch):
    """0.5.12.post1's eager server and its breakable graph took loads in one run: their averages
    stood on the page."""
    plan = gain()["gain"] | {"traffic": ["gsm8k"]}
    run = dict(visit=1, measure="", verdict="passed", captured=[], why="")
    ran = [("untouched", "eager", 2000), ("untouched", "breakable", 2600)]
    ran += [("patched", "breakable", 3600)]
    runs = [
        run | {"tree": tree, "mode": mode, "traffic": {"gsm8k": served(rate, 900, 1700)}}
        for tree, mode, rate in ran
    ]
    monkeypatch.setattr(gains, "timed", lambda *_: [of(gain(gain=plan, runs=runs))])
    found = {gains.title(one): gains.both(gains.served, one, "gsm8k") for one in gains.load(ROOT)}
    rates = {title: [tree[0] for tree in both] for title, both in found.items()}
    assert sorted(rates.values()) == [[2000, 3600], [2600, 3600]] and len(rates) == 2


def beside() -> list[dict]:
    """Two peers: one that was timed, and one that did not start."""
    calls = {"1x4096": {"fastest": 116.0, "all": [116.6, 118.0, 119.3, 120.0, 120.3]}}
    loads = [{"round": number, "tokens_per_s": 34000.0 + number} for number in range(3)]
    groups = {"matrix products": 81.0, "_chunk_scan_fwd_kernel": 8.0, "triton_poi_pow_relu_3": 2.0}
    spent = {name: {"ms": ms, "launches": 27.0} for name, ms in groups.items()}
    profile = {"1x4096": {"busy_ms": 99.0, "launches": 300.0, "groups": spent}}
    mode = "VLLM_COMPILE, FULL_AND_PIECEWISE"
    passed = dict(name="vllm", version="0.26.0", mode=mode, verdict="passed", why="")
    failed = dict(name="sglang", version="0.5.12.post1", verdict="failed", why="start: exit code 1")
    return [passed | {"first_token_ms": calls, "loads": loads, "profile": profile}, failed]


def test_peers_stand_beside_the_trees():
    said = told(gain(peers=beside()))
    assert "Beside peers, the same host and run" in said
    rows = [line for line in said.partition("Beside peers")[2].splitlines() if "|" in line]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    head = ["first token, ms", "untouched", "patched", "vllm 0.26.0", "sglang 0.5.12.post1"]
    assert cells[0] == head and max(map(len, rows)) <= 80
    assert ["1 × 4096", "201.0", "137.0", "118.0", "-"] in cells
    assert ["1 × 512", "44.0", "44.0", "-", "-"] in cells
    assert ["input tokens/s", "20481", "30119", "34001", "-"] in cells
    (busy,) = [row[1:] for row in cells if row[0] == "1 × 4096" and row[3] == "99.0"]
    assert busy[2:] == ["99.0", "-"]
    kinds = {row[0]: row[2:] for row in cells if len(row) == 4}
    assert kinds["kernels of 1 × 4096, ms"] == ["vllm 0.26.0", "sglang 0.5.12.post1"]
    assert kinds["matrix products"] == ["81.0", "-"] and kinds["Mamba2's scan"] == ["8.0", "-"]
    assert kinds["norms and activations"] == ["2.0", "-"]
    assert "vllm 0.26.0 ran in its mode VLLM_COMPILE, FULL_AND_PIECEWISE." in said
    assert "sglang 0.5.12.post1 failed: start: exit code 1." in said


def test_a_patched_tree_alone_beside_peers_is_compared_with_them():
    alone = gain(peers=beside())
    alone["runs"] = [run for run in alone["runs"] if run["tree"] == "patched"]
    said = told(alone)
    assert "this run timed the patched one beside other engines" in said
    assert "nothing can be compared" not in said and "Beside peers" in said
    alone["runs"] = [one for one in gain()["runs"] if one["tree"] == "untouched"]
    assert "nothing can be compared" in told(alone)


def test_a_peer_that_was_not_profiled_has_no_gpu_time():
    vllm, failed = beside()
    del vllm["profile"]
    assert told(gain(peers=[vllm, failed])).count("| GPU-busy, ms") == 1


def test_a_peer_says_how_its_prefills_ran_and_what_it_had_no_time_for():
    """0.5.23 was asked for its breakable graph and prefilled eagerly; vLLM was timed, and the page
    said that it was not run."""
    vllm, _ = beside()
    upstream = vllm | dict(name="sglang", version="0.5.23", mode="breakable")
    upstream |= {"prefills": {"prefills": 299, "on_graph": 0, "too_long": 0}}
    late = vllm | dict(verdict="not run", why="no time was left for profile")
    said = told(gain(peers=[upstream, late]))
    assert "sglang 0.5.23 ran in its mode breakable, with 0 of 299 prefills on a graph." in said
    assert "FULL_AND_PIECEWISE, and had no time left for profiles." in said


def test_a_gain_without_peers_says_nothing_of_them(text):
    assert "peers" not in text and of(gain()).peers == ()


def test_a_peer_that_was_profiled_is_a_bar_among_kernels():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = [of(gain(peers=beside()))]
    figure = plot._kernels(found, pyplot, ways.timed(found))
    (panel,) = figure.axes
    names = [one.get_text().partition(": ")[2] for one in panel.get_yticklabels()]
    assert names == ["untouched, eager", "patched, graph", "vllm 0.26.0"]
    assert "; beside " in panel.get_yticklabels()[-1].get_text()
    pyplot.close(figure)


def test_a_peer_is_a_line_among_first_tokens(tmp_path: Path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = plot._first_tokens(pyplot, ways.timed([of(gain(peers=beside()))]))
    (panel, *_) = figure.axes
    (line,) = [one for one in panel.get_lines() if one.get_label() == "vllm 0.26.0"]
    assert [*line.get_xdata()] == [4096] and [*line.get_ydata()] == [118.0]
    names = [one.get_text() for one in figure.legends[0].get_texts()]
    assert names[-2:] == ["vllm 0.26.0", plot.FLOOR_NAME]
    pyplot.close(figure)
