"""The pages say what is so: tables are the rules' own; patches, commands and links exist."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import fakes
import pytest
import tomlkit
from fakes import ROOT
from pages import PAGES

from evidence import cells, front, matrix, picture, results
from evidence.pages import bench
from patchqueue.queue import header, series
from patchqueue.upstream import pins

KEPT = results.load(ROOT)


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
        again = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", one) is not None for one in found)
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


def test_every_page_is_linked_from_the_front_page_or_for_maintainers():
    links = re.findall(r"\]\(([^)#\s]+)", text_of("README.md") + text_of("CONTRIBUTING.md"))
    assert {str(page.relative_to(ROOT)) for page in PAGES} - {"README.md"} <= {*links}


def test_the_field_table_is_the_rules_own():
    rows = [
        f"| `{rule.field}`{'' if rule.required else ' (optional)'}{' …' if rule.repeats else ''} |"
        f" {rule.meaning} |\n"
        for rule in header.RULES
    ]
    variants = header.VARIANT_RULES[0].meaning
    rows.append(f"| `Variant-Of` | (variants, instead of all that) {variants} |\n")
    table = f"| field | what it says |\n|---|---|\n{''.join(rows)}"
    assert f"<!-- fields -->\n{table}<!-- /fields -->" in text_of("CONTRIBUTING.md")


def test_every_patch_has_a_row_with_its_releases():
    queue, problems = series.read(ROOT)
    assert problems == []
    laid: dict[str, list[str]] = {entry.base.removesuffix(".patch"): [] for entry in queue.entries}
    for pin in pins.load(ROOT).all:
        for patch in queue.select(pin.version):
            laid[queue.base(patch.name).removesuffix(".patch")].append(pin.version.base_version)
    row = r"(?m)^\| `([a-z0-9-]+/[a-z0-9.-]+)` \| ([^|]+) \|"
    rows = re.findall(row, text_of("docs/patches.md"))
    assert sorted(name for name, _ in rows) == sorted(laid)
    for name, told in rows:
        ends = [laid[name][0], laid[name][-1]] if " – " in told else laid[name]
        assert re.split(" – |, ", told) == ends, name


NO_BREAK, NO_BREAK_HYPHEN = "\u00a0", "\u2011"
GAIN = r"(-|[\d,]+ → [\d,]+)"
FIGURES = ("short_ms", "long_ms", "tokens_per_s")


def gain_rows(page: str) -> list[tuple[str, str, list[str]]]:
    """Model, release and the three figures of each measured row of a table of gains."""
    pattern = rf"^\|([^|]*)\| ([^|]+) \| [^|]+ \| {GAIN} \| {GAIN} \| {GAIN} \|$"
    text = text_of(page).replace(NO_BREAK, " ").replace(NO_BREAK_HYPHEN, "-").replace("<br>", " ")
    rows = re.findall(pattern, text, re.MULTILINE)
    return [(model.strip(), release, figures) for model, release, *figures in rows]


def shown(row: front.Measured) -> list[str]:
    """The cells of a measured row, as the front page writes them."""
    untouched, patched = row.engines[front.UNTOUCHED], row.engines[front.PATCHED]
    pairs = [(getattr(untouched, name), getattr(patched, name)) for name in FIGURES]
    return ["-" if None in pair else "{:,} → {:,}".format(*pair) for pair in pairs]


def test_the_front_page_gains_are_those_measured():
    measured = front.measured(KEPT)
    rows = gain_rows("README.md")
    assert [(release, figures) for _, release, figures in rows] == [
        (one.row.release, shown(one)) for one in measured
    ]
    models = [one.row.model for one in measured]
    assert [model for model, *_ in rows] == [
        "" if number and models[number - 1] == model else model
        for number, model in enumerate(models)
    ]


def test_no_figure_of_the_front_page_wraps():
    assert f"56{NO_BREAK}→{NO_BREAK}12" in text_of("README.md")
    assert not re.search(r"(?m)\d → \d|^\| \w+-", text_of("README.md"))


SIDES = "both flags on both sides: {}→{} ms, {}→{} ms and {:,}→{:,} tokens/s: no gain at 64 tokens."


def test_the_figures_below_the_table_are_those_measured():
    """The days of the runs and the slow host's profile. Of Qwen3-Next on 0.5.12.post1: vLLM beside
    the table's run, and both flags on both sides."""
    said = " ".join(text_of("README.md").replace(f"{NO_BREAK}→{NO_BREAK}", "→").split())
    days = sorted(one.date for one in front.measured(KEPT))
    first, last = (datetime.date.fromisoformat(day) for day in (days[0], days[-1]))
    assert f"Measured {first} to {last.day}; only" in said
    (slow,) = (one for one in front.measured(KEPT) if one.row.release == "0.5.23")
    whole, busy = slow.engines[front.UNTOUCHED].short_ms, slow.busy_ms[front.UNTOUCHED]
    assert f"busy for {busy:.0f} of untouched 0.5.23's {whole} ms" in said
    runs: dict[str, dict[str, front.Figures]] = {}
    for row in KEPT:
        if row.release == "0.5.12.post1" and ".fa3.qwen3-next." in row.run:
            runs.setdefault(row.run, {})[row.name.split()[0]] = front.figures(row)
    vllm = runs["nvidia-h200.fa3.qwen3-next.eager-to-breakable"]["vllm"]
    figures = f"{vllm.short_ms} ms, {vllm.long_ms} ms and {vllm.tokens_per_s:,} tokens/s."
    assert f"Qwen3-Next in vLLM 0.33.0: {figures}" in said
    both = runs["nvidia-h100-80gb-hbm3.fa3.qwen3-next.breakable-to-breakable"]
    ways = [both[front.UNTOUCHED], both[front.PATCHED]]
    assert SIDES.format(*(getattr(way, name) for name in FIGURES for way in ways)) in said


FAILED = {
    ("qwen3-next", "breakable"): {"0.5.23"},
    ("glm-5", "piecewise"): {"0.5.11", "0.5.13.post1", "0.5.14", "0.5.15.post1"},
}


def test_what_failed_and_what_was_inconclusive_is_the_matrix_s():
    """The sentences of "Is it safe?": 0.5.5's NemotronH failed for want of a prefix cache."""
    inconclusive, failed = {}, {}
    features = cells.load(ROOT).features
    for pin, row in matrix.matrix(ROOT, pins.load(ROOT)):
        for feature, cell in zip(features, row, strict=True):
            key, said = (feature.models[-1], feature.mode), cell.before or cell.state
            if said is matrix.State.FAILED and str(pin.version) != "0.5.5.post3":
                failed.setdefault(key, set()).add(str(pin.version))
            if said is matrix.State.INCONCLUSIVE:
                inconclusive.setdefault(key, []).append(str(pin.version))
    assert failed == FAILED
    assert sorted(inconclusive) == [
        ("qwen3-next", "breakable"),
        ("qwen3-next", "piecewise"),
        ("qwen3-next", "piecewise-inductor"),
    ]
    assert inconclusive["qwen3-next", "breakable"] == ["0.5.17", "0.5.16"]
    assert inconclusive["qwen3-next", "piecewise"][-1] == "0.5.16"


def test_the_dates_are_those_of_the_newest_release_and_proof():
    newest = max(pins.load(ROOT).all, key=lambda pin: pin.version)
    covered = f"Newest release covered: {newest.version} (released {newest.released})."
    last = max(row.date for row in KEPT if row.kind == "proof")
    assert f"{covered} Last GPU run: {last}." in text_of("README.md")


@pytest.mark.parametrize("theme", picture.THEMES, ids=lambda theme: theme.file)
def test_the_picture_shows_what_was_measured(theme):
    """`scripts/nox status --plot` draws it."""
    drawn = text_of(theme.file)
    assert picture.description(front.measured(KEPT)) in drawn
    assert len(drawn) <= 60_000


def test_the_picture_leaves_out_rows_without_both_figures():
    measured = front.measured(KEPT)
    missing = [one.row.model for one in measured if None in vars(one.engines["patched"]).values()]
    assert missing and not set(missing) & {one.row.model for one in picture.complete(measured)}


def test_the_badges_are_true():
    versions = [pin.version.base_version for pin in pins.load(ROOT).all]
    project = tomlkit.parse(text_of("pyproject.toml"))["project"]
    least = project["requires-python"].removeprefix(">=")
    covered = f"{len(versions)} releases, {versions[0]} – {versions[-1]}"
    assert covered in text_of("docs/images/releases.svg")
    assert f">{project['license']}<" in text_of("docs/images/license.svg")
    assert f">{least} or newer<" in text_of("docs/images/python.svg")


def test_the_choice_of_a_release_repeats_the_front_page():
    """Rows of docs/choose.md by model; times alone."""
    pattern = rf"^\| [^|]+ \| ([\d.a-z]+) \| [^|]+ \| {GAIN} \| {GAIN} \| [^|]+ \|$"
    choices = re.findall(pattern, text_of("docs/choose.md"), re.MULTILINE)
    measured = {(one.row.release, *shown(one)[:2]) for one in front.measured(KEPT)}
    assert len(choices) == 4 and set(choices) <= measured


LOADS = ("gsm8k", "chat-16", "chat-32", "long")


def test_the_loads_are_those_measured():
    """Medians of all loads of a kind, with FlashAttention 3."""
    row = r"(?m)^\| ([\d.post]+), ([a-z → ]+)(?: \(\d\))? \| (.+) \|$"
    rows = re.findall(row, text_of("docs/choose.md"))
    shown_loads = {(version, way): cells.split(" | ") for version, way, cells in rows}
    taken = [
        row
        for row in KEPT
        if row.loads.keys() & {*LOADS}
        and (row.model, row.attention, row.gpu) == (bench.LOADED, "fa3", bench.USUAL_GPU)
    ]
    measured = {}
    for patched in (row for row in taken if row.name == front.PATCHED):
        for before in (row for row in taken if row.name == front.UNTOUCHED):
            if before.raw == patched.raw:
                way = " → ".join(dict.fromkeys((before.mode, patched.mode)))
                cells = [bench.load_pair(before, patched, kind) for kind in LOADS]
                measured[patched.release, way] = cells
    assert shown_loads.items() <= measured.items() and len(shown_loads) == 4
    days = {row.date for row in taken}
    assert f"Measured on {min(days)} and {max(days)[-2:]}," in text_of("docs/choose.md")


def test_ci_runs_the_page_s_test_command():
    block = r"## Test your clone\n+```sh\n(.+?)```"
    commands = re.search(block, text_of("README.md"), re.S)
    apply, test = (line for line in commands[1].splitlines() if not line.startswith("#"))
    assert apply == "scripts/nox apply"
    assert f'exec {test} "$@"' in text_of(".ci/run").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_session_named_exists(page):
    named = re.findall(r"(?:scripts/nox|nox -s) ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
    assert {*named} <= fakes.sessions() | {"clean"}  # of scripts/nox itself
