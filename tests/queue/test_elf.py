"""What is zeroed in a library for one kind of GPU, and what has to stay: on made-up ELF files."""

import ctypes
import sys
from pathlib import Path

import pytest
from elffiles import fat_binary, library

from bundle import elf
from bundle.elf import CODE, PTX, Entry
from patchqueue.environments.cuda_stubs import shared_library
from patchqueue.outcome import Refused

LTO = 8  # neither machine code nor PTX: what cuFFT links while it runs


def test_only_the_gpus_own_code_stays_and_nothing_moves(tmp_path):
    programs = [(CODE, 80, b"a" * 40), (CODE, 90, b"b" * 50), (PTX, 90, b"c" * 60)]
    before = fat_binary(*programs) + bytes(8) + fat_binary((CODE, 100, b"d" * 10))
    sections = {".text": b"code", ".nv_fatbin": before, ".symtab": b"s" * 48, ".own": b"kept"}
    file = tmp_path / "libmade.so"
    whole = library(sections, (".text", ".nv_fatbin"))
    file.write_bytes(whole)
    found = elf.zero(file, 90)
    after = file.read_bytes()
    assert len(after) == len(whole)
    gone = [b"a" * 40, b"c" * 60, b"d" * 10, b"s" * 48]
    wanted = whole
    for content in gone:
        wanted = wanted.replace(content, bytes(len(content)))
    assert after == wanted and b"b" * 50 in after
    assert found == elf.Zeroed(kept=50, zeroed=110, symbols=48, programs=2, none=1)
    assert elf.zero(file, 90) == found and file.read_bytes() == after, "twice is as once"


@pytest.mark.parametrize(
    ("programs", "sm", "kept"),
    [
        # machine code of the same major number runs from its own minor number on
        ([(CODE, 80), (CODE, 86), (CODE, 89), (CODE, 90)], 89, {80, 86, 89}),
        ([(CODE, 80), (CODE, 86), (PTX, 80)], 89, {80, 86, (PTX, 80)}),
        ([(CODE, 80), (CODE, 86)], 80, {80}),
        # machine code for another major number runs nowhere else: PTX is compiled in its place
        ([(CODE, 80), (PTX, 80)], 90, {(PTX, 80)}),
        ([(CODE, 80)], 90, set()),
        ([(CODE, 90), (PTX, 90)], 90, {90}),
        ([(CODE, 100), (PTX, 100)], 90, set()),
        ([(CODE, 90), (PTX, 90)], 100, {(PTX, 90)}),
        # code for exactly a GPU's own features has its number: compute capability 9.0a is 90
        ([(CODE, 90), (CODE, 90), (PTX, 80)], 90, {90}),
        # what is neither is left alone
        ([(LTO, 50), (CODE, 50)], 90, {(LTO, 50)}),
    ],
)
def test_which_programs_a_gpu_could_run(programs, sm, kept):
    entries = [Entry(kind, made, at, 1) for at, (kind, made) in enumerate(programs)]
    wanted = {one if isinstance(one, tuple) else (CODE, one) for one in kept}
    assert {(one.kind, one.sm) for one in elf.keeps(entries, sm)} == wanted


def test_sections_for_linking_and_of_other_data_are_trimmed_too(tmp_path):
    """NCCL's second copy, for the linker, is larger than the first; cuBLAS loads from its own."""
    other = fat_binary((CODE, 100, b"x" * 30))
    sections = {"__nv_relfatbin": other, ".cask_resource": b"own\1" + other + b"end", ".lib": other}
    file = tmp_path / "libmade.so"
    file.write_bytes(library(sections, tuple(sections)))
    assert elf.zero(file, 90).zeroed == 60
    left = file.read_bytes()
    assert left.count(b"x" * 30) == 1 and b"own\1" in left and b"end" in left


@pytest.mark.parametrize(("kind", "loaded"), [(1, False), (2, True), (3, True), (4, False)])
def test_what_a_linker_reads_is_no_library(tmp_path, kind, loaded):
    """An object file's relocations are mapped by nobody, and needed."""
    (tmp_path / "made").write_bytes(library({}, (), kind=kind))
    assert elf.is_loaded(tmp_path / "made") is loaded
    (tmp_path / "cubin").write_bytes(library({}, ()).replace(b"\x3e\0", b"\xbe\0", 1))
    assert not elf.is_loaded(tmp_path / "cubin") and not elf.is_loaded(Path(__file__))


def test_a_library_that_is_linked_still_loads(tmp_path):
    if sys.platform != "linux":
        pytest.skip("ELF files")
    file = tmp_path / "libmade.so.1"
    file.write_bytes(shared_library(file.name, {"made": None}))
    assert elf.zero(file, 90) == elf.Zeroed()
    assert ctypes.CDLL(str(file)).made() == 100


NINE = fat_binary((CODE, 90, b"a" * 9))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no library", "it is no ELF file"),
        (b"\x7fELF\x02\x01", "requires a buffer"),
        (library({".nv_fatbin": NINE[:-1]}, ()), "ends outside its section"),
        (
            library({".nv_fatbin": NINE.replace(b"\x09\0", b"\x0a\0")}, ()),
            "is longer than its fat binary",
        ),
    ],
    ids=["text", "cut", "cut-program", "wrong-size"],
)
def test_what_cannot_be_read_is_named(tmp_path, content, said):
    file = tmp_path / "libmade.so"
    file.write_bytes(content)
    with pytest.raises(Refused, match=f"libmade.so: .*{said}.*bad-fatbin"):
        elf.zero(file, 90)
    assert file.read_bytes() == content


def test_the_functions_of_a_library_are_read():
    import _ctypes

    assert "PyInit__ctypes" in elf.offers(Path(_ctypes.__file__))
    assert elf.offers(Path(__file__)) == frozenset()
