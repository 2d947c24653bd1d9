"""What a patched tree says of itself at a server's start, and compared with what the queue made."""

import json
import logging
import os
import shutil
import subprocess
import sys

import pytest
from host import interpreted, late

with late.modules():
    from sglang.srt import plugins as srt_plugins
    from sglang.srt.entrypoints import engine
    from sglang.srt.prefill_graph.report import provenance


@pytest.fixture
def copy(tree, tmp_path):
    """The tree under test under another name, its files linked: write() replaces one."""
    shutil.copytree(
        tree / "python/sglang",
        tmp_path / "sglang",
        copy_function=os.link,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def write(path, text):
    path.unlink(missing_ok=True)
    path.write_text(text)


def verify(folder, *words):
    """`python -m sglang.srt.prefill_graph --verify` on the sglang in `folder`."""
    return interpreted.call("sglang.srt.prefill_graph", "--verify", *words, folder=folder)


class Stop(Exception):
    pass


class Arguments:
    """Those of a server that asks for any stops there."""

    def __getattr__(self, name):
        raise Stop


def test_a_server_says_at_its_start_that_its_tree_is_patched(monkeypatch, caplog, tree, revision):
    """In the function that it calls right after its logging is set up."""
    if hasattr(engine, "resolving_view"):  # it only reads, from 0.5.20 on
        monkeypatch.setattr(engine, "resolving_view", lambda arguments: arguments)
    with caplog.at_level(logging.INFO), pytest.raises(Stop):
        engine._set_envs_and_config(Arguments())
    record = json.loads((tree / "python/sglang/srt/prefill_graph/provenance.json").read_text())
    [line] = [line for line in caplog.messages if line.startswith("Patched by")]
    assert line.startswith(
        f"Patched by the prefill graph queue: sglang {revision}, queue release {record['release']},"
        f" {len(record['patches'])} patches, tree sha256:"
    )


def test_the_hash_is_the_one_that_the_tool_recorded(tree):
    assert (
        provenance.tree_hash()
        == json.loads((tree / "provenance.json").read_text())["tree"]["after"]
    )


def test_a_tree_as_it_was_made_verifies(copy):
    done = verify(copy)
    assert done.returncode == 0 and "files are as the queue made them" in done.stdout, (
        done.stdout + done.stderr
    )
    found = json.loads(verify(copy, "--json").stdout)["verification"]
    assert found["intact"] and found["files"] > 1000 and found["tree"].startswith("sha256:")


def test_every_file_that_differs_is_named(copy):
    write(copy / "sglang/srt/entrypoints/engine.py", "x = 1\n")
    (copy / "sglang/srt/utils/__init__.py").with_name("left_behind.py").write_text("")
    (copy / "sglang/srt/prefill_graph/model/stack.py").unlink()
    done = verify(copy)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-4:] == [
        "  changed  sglang/srt/entrypoints/engine.py",
        "  missing  sglang/srt/prefill_graph/model/stack.py",
        "edits of others since then (1):",
        "  added    sglang/srt/utils/left_behind.py",
    ]


def test_without_what_was_laid_every_difference_is_a_fault(copy):
    (copy / "sglang/srt/prefill_graph/laid.json").unlink()
    (copy / "sglang/srt/models/llama.py").unlink()
    done = verify(copy)
    assert done.returncode == 1 and done.stdout.endswith("  missing  sglang/srt/models/llama.py\n")


def test_the_folder_verifies_where_the_libraries_are_missing(copy):
    """`sglang` itself imports numpy, torch and more; -I and -S leave the standard library alone."""
    command = [sys.executable, "-I", "-S", copy / "sglang/srt/prefill_graph", "--verify"]
    assert subprocess.run([*command[:3], "-c", "import numpy"], capture_output=True).returncode == 1
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "files are as the queue made them" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "servers" in json.loads(
        subprocess.run([*command[:-1], "--json"], capture_output=True, text=True).stdout
    )


@pytest.mark.parametrize("text", [None, "no listing\n"])
def test_without_a_listing_nothing_is_claimed(copy, text):
    listing = copy / "sglang/srt/prefill_graph/tree.sha256"
    listing.unlink()
    if text:
        listing.write_text(text)
    done = verify(copy)
    assert done.returncode == 2 and "cannot be verified: tree.sha256 cannot be read" in done.stdout


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The release's own list of plugins, where the installed sglang names this one too."""
    info = tmp_path / "sglang-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: sglang\nVersion: 0\n")
    called = "sglang.srt.prefill_graph.report.provenance:log_plugin"
    (info / "entry_points.txt").write_text(
        f"[sglang.srt.plugins]\nprefill_graph_queue = {called}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(srt_plugins, "_plugins_loaded", False)
    return srt_plugins


@pytest.mark.revision(">=0.5.11")
def test_upstream_lists_and_calls_the_plugin(plugins, caplog):
    with caplog.at_level(logging.INFO):
        plugins.load_plugins()
    for line in (
        "  - prefill_graph_queue -> sglang.srt.prefill_graph.report.provenance:log_plugin",
        "Loaded plugin prefill_graph_queue from group sglang.srt.plugins",
        "Executed general plugin: prefill_graph_queue",
    ):
        assert line in caplog.messages, caplog.messages
    [own] = [line for line in caplog.messages if line.startswith("The prefill graph queue's")]
    assert own.endswith(f" patches, tree {provenance.tree_hash()}")
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
