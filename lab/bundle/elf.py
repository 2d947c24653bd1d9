"""Zero what one kind of GPU never loads in ELF files, so that they pack small: nothing moves. And
read which functions a library has.

A library's code for GPUs lies in fat binaries, in the sections FATBIN. A fat binary holds one
program for several kinds of GPU: the driver takes the entry that fits best, and reads no other.
`keeps` is the rule by which entries stay. Of the sections SPARE nothing stays.

ELF's layout is the System V gABI's (chapter 4). The fat binary's is not documented by NVIDIA; it
was read from libraries of CUDA 12.8 and 13.0, and every file that does not hold to it is refused.
Which entry runs where: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
"""

from __future__ import annotations

import mmap
import operator
import shutil
import struct
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from patchqueue.environments.cuda_stubs import sections
from patchqueue.outcome import Refused

# the program as it is run, as it is linked, and what cuBLAS and cuDNN load by themselves
FATBIN = (".nv_fatbin", "__nv_relfatbin", ".cask_resource")
HEADER = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # magic, version, the header's own size
PTX, CODE = 1, 2
ELF = b"\x7fELF\x02\x01"  # of 64 bits, little-endian
HOSTS = (62, 183)  # e_machine of x86-64 and AArch64; NVIDIA's GPUs have 190
_ALLOCATED, _NO_BITS = 2, 8  # a section's flag SHF_ALLOC, and the type of one without bytes
# begin the names of sections that no loader reads: symbols for linkers and debuggers
SPARE = (".symtab", ".strtab", ".debug", ".zdebug", ".comment")


@dataclass(frozen=True)
class Entry:
    """One program in a fat binary. kind: PTX, CODE or another; sm: the compute capability, as 90;
    offset, size: of its bytes in the file."""

    kind: int
    sm: int
    offset: int
    size: int


@dataclass(frozen=True)
class Zeroed:
    """What became of files. kept, zeroed: bytes of code for GPUs; symbols: bytes of zeroed sections
    SPARE; programs: fat binaries; none: of these, how many have nothing for the GPU,
    before and after."""

    kept: int = 0
    zeroed: int = 0
    symbols: int = 0
    programs: int = 0
    none: int = 0

    def __add__(self, other: Zeroed) -> Zeroed:
        return Zeroed(*map(operator.add, astuple(self), astuple(other)))


def keeps(entries: Iterable[Entry], sm: int) -> frozenset[Entry]:
    """The entries of one fat binary that a GPU of compute capability `sm` could run. Machine code
    runs on its own major number, from its own minor number on. The driver compiles PTX for the same
    or a later capability, which is needed where there is no machine code for exactly `sm`. What is
    neither PTX nor machine code stays."""
    entries = tuple(entries)
    exact = any(entry.kind == CODE and entry.sm == sm for entry in entries)

    def kept(entry: Entry) -> bool:
        if entry.kind == CODE:
            return entry.sm // 10 == sm // 10 and entry.sm <= sm
        return entry.kind != PTX or (not exact and entry.sm <= sm)

    return frozenset(filter(kept, entries))


def offers(file: Path) -> frozenset[str]:
    """The names of the symbols that a library defines for others; none where it is no ELF file."""
    with file.open("rb") as handle:
        if handle.read(6) != ELF:
            return frozenset()
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            wanted = (one for one in sections(data) if one.name in (".dynsym", ".dynstr"))
            found = {section.name: section.of(data) for section in wanted}
    symbols, strings = (found.get(name, b"") for name in (".dynsym", ".dynstr"))
    return frozenset(
        strings[name : strings.index(b"\0", name)].decode()
        for name, where in struct.iter_unpack("<IxxH16x", symbols)
        if name and where
    )


def is_loaded(file: Path) -> bool:
    """Whether it is a program or a shared library for the processor: what `zero` is for."""
    with file.open("rb") as handle:
        head = handle.read(20)
    known = [(kind, of) for kind in (2, 3) for of in HOSTS]
    return len(head) == 20 and head[:6] == ELF and struct.unpack_from("<HH", head, 16) in known


def zero(file: Path, sm: int) -> Zeroed:
    """Zero in place what a GPU of compute capability `sm` has no use for. Size and offsets stay.
    Raises Refused where the file is no ELF file, or its fat binaries are of an unknown form."""
    try:
        with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0) as data:
            return _zero(data, sm)
    except (struct.error, ValueError, IndexError) as error:
        what = f"its code for GPUs cannot be read: {error}"
        step = "pack it as it is: see lab/bundle/elf.py, or report its name"
        raise Refused.of("bad-fatbin", file.name, what, step) from None


def zero_all(folder: Path, sm: int) -> Zeroed:
    """Zero every library and program of a folder, in copies of their own: installed files are hard
    links into uv's cache. Raises Refused as `zero` does."""
    done = Zeroed()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        if not file.is_symlink() and is_loaded(file):
            copy = file.with_name(f"{file.name}.own")
            shutil.copy2(file, copy)
            copy.replace(file)
            done += zero(file, sm)
    return done


def _zero(data: mmap.mmap, sm: int) -> Zeroed:
    if data[:6] != ELF:
        raise ValueError("it is no ELF file")
    done = Zeroed()
    for section in sections(data):
        if section.kind == _NO_BITS or section.offset + section.size > len(data):
            continue
        if section.name in FATBIN:
            for entries in fat_binaries(data, section.offset, section.size):
                done += _zero_others(data, entries, sm)
        elif section.name.startswith(SPARE) and not section.flags & _ALLOCATED:
            data[section.offset : section.offset + section.size] = bytes(section.size)
            done += Zeroed(symbols=section.size)
    return done


def _zero_others(data: mmap.mmap, entries: tuple[Entry, ...], sm: int) -> Zeroed:
    kept = keeps(entries, sm)
    for entry in entries:
        if entry not in kept:
            data[entry.offset : entry.offset + entry.size] = bytes(entry.size)
    size = sum(entry.size for entry in kept)
    return Zeroed(size, sum(entry.size for entry in entries) - size, 0, 1, int(not kept))


def fat_binaries(data: mmap.mmap | bytes, at: int, size: int) -> Iterator[tuple[Entry, ...]]:
    """The entries of every fat binary between `at` and `at + size`; other bytes may lie between.
    Raises ValueError for one whose entries do not fill it."""
    end = at + size
    while (at := data.find(HEADER, at, end)) >= 0:
        (length,) = struct.unpack_from("<Q", data, at + 8)
        at += 16
        if at + length > end:
            raise ValueError(f"a fat binary at byte {at - 16} ends outside its section")
        yield tuple(_entries(data, at, at + length))
        at += length


def _entries(data: mmap.mmap | bytes, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        (sm,) = struct.unpack_from("<I", data, at + 28)
        if header < 32 or at + header + size > end:
            raise ValueError(f"an entry at byte {at} is longer than its fat binary")
        yield Entry(kind, sm, at + header, size)
        at += header + size
