"""The pages say what is so: tables are the rules' own, patches, commands and links exist, and the
front page stays short."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import fakes
import pytest

from evidence import gains, ways
from patchqueue.queue import header, series
from patchqueue.upstream import pins

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SESSIONS = sorted(
    {
        name
        for page in PAGES
        for name in re.findall(
            r"(?:scripts/nox|nox -s) ([a-z][a-z-]*)", page.read_text(encoding="utf-8")
        )
    }
)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links, as GitHub makes it of them."""
    found: list[str] = []
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(page)):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(
            one == name or re.fullmatch(rf"{re.escape(name)}-\d+", one) is not None for one in found
        )
        found.append(f"{name}-{again}" if again else name)
    return set(found)


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One: two\n\n[a](#one-two) [b](gone.md) [c](page.md#three) [d](https://example.org/x)\n\n```\n[e](code.md)\n```\n"
    )
    assert broken(page) == ["gone.md", "page.md#three"]


def test_every_page_of_docs_is_on_the_front_page():
    links = set(re.findall(r"\]\(([^)#\s]+)", text_of("README.md")))
    assert {str(page.relative_to(ROOT)) for page in PAGES} - {"README.md"} <= links


def test_the_front_page_is_short():
    assert len(text_of("README.md").encode()) <= 12_000


def test_the_field_table_is_the_rules_own():
    assert f"<!-- fields -->\n{header.documentation()}\n<!-- /fields -->" in text_of(
        "CONTRIBUTING.md"
    )


def test_every_patch_has_a_row_with_its_releases():
    queue, problems = series.read(ROOT)
    assert problems == []
    laid: dict[str, list[str]] = {entry.base.removesuffix(".patch"): [] for entry in queue.entries}
    for pin in pins.load(ROOT).all:
        for patch in queue.select(pin.version):
            laid[queue.base(patch.name).removesuffix(".patch")].append(pin.version.base_version)
    rows = re.findall(
        r"^\| `([a-z0-9-]+/[a-z0-9.-]+)` \| ([^|]+) \|", text_of("docs/patches.md"), re.MULTILINE
    )
    assert sorted(name for name, _ in rows) == sorted(laid)
    for name, told in rows:
        ends = [laid[name][0], laid[name][-1]] if " – " in told else laid[name]
        assert re.split(" – |, ", told) == ends, name


# the front page's rows, in order: the evidence of the figures behind each
GAINS = {
    "0.5.9, eager → breakable (3)": "0.5.9/nvidia-h200.fa3.breakable.gain.json",
    "0.5.10.post1, eager → breakable (3)": "0.5.10.post1/nvidia-h200.fa3.breakable.gain.json",
    "0.5.11, eager → breakable (3)": "0.5.11/nvidia-h200.fa3.breakable.gain.json",
    "0.5.12.post1, piecewise": "0.5.12.post1/nvidia-h200.piecewise.gain.json",
    "0.5.12.post1, piecewise → breakable": (
        "0.5.12.post1/nvidia-h200.breakable-beside-piecewise.gain.json"
    ),
    "0.5.12.post1, breakable (3)": "0.5.12.post1/nvidia-h200.fa3.gain.json",
    "0.5.13.post1, eager → breakable (3)": ("0.5.13.post1/nvidia-h200.fa3.breakable.gain.json"),
    "0.5.16, breakable (1)": "0.5.16/nvidia-h200.capture.gain.json",
    "0.5.23, eager → breakable (1, 2)": "0.5.23/nvidia-h200.breakable.gain.json",
    "0.5.12.post1, eager": "0.5.12.post1/nvidia-h200.nemotron-3-nano.gain.json",
    "Qwen3.5-35B-A3B": "0.5.12.post1/nvidia-h200.qwen3.5-moe.breakable.gain.json",
    "Qwen3-Next-80B-A3B, 32 of 48 layers": (
        "0.5.12.post1/nvidia-h200.qwen3-next-32.breakable.gain.json"
    ),
}
SHAPES = ("1x64", "1x512", "1x4096")


def test_the_front_page_gains_are_those_measured():
    """First quartiles, and the middle one of the loads, rounded to hundreds. A row says how both
    trees prefilled."""
    cell = r"(-|\d+ → \d+)"
    row = rf"^\| ([^|]+) \| ([^|]+) \| {cell} \| {cell} \| {cell} \| {cell} \|$"
    told = re.findall(row, text_of("README.md"), re.MULTILINE)
    assert len(told) == len(GAINS)
    for (model, how, *cells), (key, file) in zip(told, GAINS.items(), strict=True):
        assert key in (model, how)
        evidence = json.loads((ROOT / "evidence" / file).read_text())
        runs = sorted(evidence["runs"], key=lambda run: run["tree"] != "untouched")
        ways = list(dict.fromkeys(run["mode"] for run in runs))
        assert how.split(" (")[0] == f"{evidence['version']}, {' → '.join(ways)}"
        spans = [[run["first_token_ms"].get(shape) for run in runs] for shape in SHAPES]
        loads = [[load["tokens_per_s"] for load in run.get("loads", ())] for run in runs]
        shown = [
            *(_pair([span and round(span["first_quartile"]) for span in pair]) for pair in spans),
            _pair([round(statistics.median(load) / 100) * 100 if load else None for load in loads]),
        ]
        assert cells == shown, how


LOADS = ("gsm8k", "chat-16", "chat-32", "long")


def test_the_front_page_loads_are_those_measured():
    """Medians of all loads of a kind, with FlashAttention 3 and today's queue."""
    rows = re.findall(
        r"^\| ([\d.post]+), ([a-z → ]+)(?: \(1\))? \| (.+) \|$", text_of("README.md"), re.M
    )
    told = {(version, way): cells.split(" | ") for version, way, cells in rows if "→" in cells}
    found = {}
    for gain in gains.load(ROOT):
        if gain.gain.traffic and gain.attention == "fa3" and "H200" in gain.gpu.name:
            modes = dict.fromkeys(gains.runs(gain, tree)[0].mode for tree in gains.TREES)
            found[gain.version, " → ".join(modes)] = [
                _served(gain, kind, part) for kind, part in zip(LOADS, (0, 1, 1, 0), strict=True)
            ]
    assert told.items() <= found.items() and len(told) == 4
    assert found.keys() - told.keys() == {("0.5.12.post1", "eager → breakable")}


def test_the_front_page_long_prompts_are_those_measured():
    """Means of the two loads of 8192 tokens and one answered, rounded to hundreds."""
    told = dict(re.findall(r"([\d.]+(?:post\d)?) reads (\d+ → \d+)", text_of("README.md")))
    found = {}
    for gain in gains.load(ROOT):
        both = gains.both(gains.served, gain, "prefill") if "H100" in gain.gpu.name else []
        if both and all(both):
            found[gain.version] = _pair([round(one[0] / 100) * 100 for one in both])
    assert told == found


def _served(gain, kind, part):
    pair = [one and round(one[part]) for one in gains.both(gains.served, gain, kind)]
    return _pair(pair if all(pair) else [None, None])


PEERS = "0.5.12.post1/nvidia-h100-80gb-hbm3.fa3.gain.json"


def test_the_front_page_peers_are_those_measured():
    """First quartiles of one run on 16 threads, the median of its loads, rounded to hundreds, and
    the scan in its profile."""
    found = json.loads((ROOT / "evidence" / PEERS).read_text())
    (patched,), (vllm,) = found["runs"], found["peers"]
    assert (patched["tree"], vllm["name"], found["cpus"]) == ("patched", "vllm", 16)
    runs = {
        f"sglang {found['version']}, patched, {patched['mode']}": patched,
        f"vLLM {vllm['version']}, its own graphs": vllm,
    }
    page = text_of("README.md")
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    assert [name for name, *_ in rows] == list(runs)
    for name, *cells in rows:
        spans = [runs[name]["first_token_ms"][shape]["first_quartile"] for shape in SHAPES]
        load = statistics.median(one["tokens_per_s"] for one in runs[name]["loads"])
        assert [*map(int, cells)] == [*map(round, spans), round(load / 100) * 100], name

    def scan(run):
        spent = {kind: group["ms"] for kind, group in run["profile"]["1x4096"]["groups"].items()}
        return round(ways.kinds(spent)["Mamba2's scan"], 1)

    told = re.search(r"4096 tokens took ([\d.]+) ms in sglang and ([\d.]+) ms in vLLM", page)
    assert [*map(float, told.groups())] == [scan(patched), scan(vllm)]


def test_ci_runs_the_page_s_test_command():
    block = r"## Two commands of a fresh clone\n+```sh\n(.+?)```"
    commands = re.search(block, text_of("README.md"), re.S)
    apply, test = (line for line in commands[1].splitlines() if not line.startswith("#"))
    assert apply == "scripts/nox apply"
    assert f'exec {test} "$@"' in text_of(".ci/run").splitlines()


def _pair(numbers: list[int | None]) -> str:
    """None: a figure that the run did not reach."""
    return "-" if None in numbers else " → ".join(map(str, numbers))


@pytest.mark.parametrize("session", SESSIONS)
def test_every_session_named_exists(session):
    assert session in fakes.sessions()
