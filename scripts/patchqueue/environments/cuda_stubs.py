"""Shared libraries that let GPU builds load on a host without a GPU: the loader wants every CUDA
library before the first line of Python runs, although a CPU test calls none.

`write_stand_ins` reads which libraries and symbols the installed `.so` files ask for and writes,
for each CUDA library that is not installed, a small ELF file whose functions all return 100
(`cudaErrorNoDevice`). Layouts: System V gABI (chapters 4 and 5), x86-64 psABI and, for symbol
versions, the Linux Standard Base.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Library (its name up to ".so") -> the symbols that are its own where the asking file does not say
# so by a version. Only these are ever stood in for: any other missing library is an error worth
# seeing.
STANDS_IN_FOR: Mapping[str, str] = {
    "libcuda": r"cu(?!File)[A-Z]",
    "libcublas": r"cublas(?!Lt)",
    "libcublasLt": r"cublasLt",
    "libcudnn": r"cudnn",
    "libcufft": r"cufft",
    "libcufile": r"cuFile",
    "libcupti": r"cupti",
    "libcurand": r"curand",
    "libcusolver": r"cusolver",
    "libcusparse": r"cusparse(?!Lt)",
    "libcusparseLt": r"cusparseLt",
    "libnccl": r"p?nccl[A-Z]",
    "libnuma": r"numa_",  # sgl_kernel pins host memory with it; few minimal hosts have it
    "libnvJitLink": r"nvJitLink",
    "libnvrtc": r"nvrtc",
    "libnvshmem_host": r"nvshmem",
    "libnvToolsExt": r"nvtx",
}

NO_DEVICE = 100
_PAGE = 0x1000
_SHT_STRTAB, _SHT_DYNAMIC, _SHT_DYNSYM = 3, 6, 11
_SHT_VERNEED, _SHT_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME = 1, 14
_STB_WEAK = 2


@dataclass(frozen=True)
class Wants:
    """What one ELF file asks of others: library names, and (symbol, library, version) of each
    undefined strong symbol; both None where the symbol carries no version."""

    libraries: frozenset[str]
    symbols: frozenset[tuple[str, str | None, str | None]]


@dataclass(frozen=True)
class Section:
    """A section of an ELF file, by its header: sh_type, sh_flags, place, size, sh_link."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int

    def of(self, data: mmap.mmap) -> bytes:
        """The section's bytes."""
        return data[self.offset : self.offset + self.size]


def _text(table: bytes | mmap.mmap, at: int) -> str:
    return table[at : table.find(b"\0", at)].decode()


def sections(data: mmap.mmap) -> list[Section]:
    """The sections of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    width, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQ8xQQI", data, table + n * width) for n in range(count)]
    return [Section(_text(data, rows[names][3] + name), *fields) for name, *fields in rows]


def _needed_versions(
    data: mmap.mmap, section: Section, strings: bytes
) -> dict[int, tuple[str, str]]:
    """Version index -> (library, version)."""
    versions: dict[int, tuple[str, str]] = {}
    at = section.offset
    while True:
        _, count, file, aux, following = struct.unpack_from("<HHIII", data, at)
        inner = at + aux
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, inner)
            versions[index & 0x7FFF] = (_text(strings, file), _text(strings, name))
            inner += step
        if not following:
            return versions
        at += following


def read_wants(file: Path) -> Wants | None:
    """What `file` asks for; None where it is no x86-64 ELF file with dynamic symbols."""
    with file.open("rb") as handle:
        head = handle.read(20)
        if len(head) < 20 or head[:6] != b"\x7fELF\x02\x01" or head[18:20] != b"\x3e\x00":
            return None
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _wants(data)


def _wants(data: mmap.mmap) -> Wants | None:
    every = sections(data)
    by_kind = {section.kind: section for section in every}
    if _SHT_DYNSYM not in by_kind or _SHT_DYNAMIC not in by_kind:
        return None
    dynamic, symtab = by_kind[_SHT_DYNAMIC], by_kind[_SHT_DYNSYM]
    names = every[dynamic.link].of(data)
    libraries = {
        _text(names, value)
        for tag, value in struct.iter_unpack("<qQ", dynamic.of(data))
        if tag == _DT_NEEDED
    }
    strings = every[symtab.link].of(data)
    versions: dict[int, tuple[str, str]] = {}
    if _SHT_VERNEED in by_kind:
        need = by_kind[_SHT_VERNEED]
        versions = _needed_versions(data, need, every[need.link].of(data))
    versym = by_kind[_SHT_VERSYM].of(data) if _SHT_VERSYM in by_kind else b""
    chosen = [index for (index,) in struct.iter_unpack("<H", versym)]
    wanted = set[tuple[str, str | None, str | None]]()
    rows = struct.iter_unpack("<IBBH16x", symtab.of(data))
    for number, (name, info, _, where) in enumerate(rows):
        if where or not name or info >> 4 == _STB_WEAK:
            continue
        owner = versions.get(chosen[number] & 0x7FFF) if chosen else None
        wanted.add((_text(strings, name), *(owner or (None, None))))
    return Wants(frozenset(libraries), frozenset(wanted))


def stem(library: str) -> str:
    """libcublas.so.12 -> libcublas"""
    return library.split(".so", maxsplit=1)[0]


def missing_libraries(
    wants: Iterable[Wants], installed: Iterable[str]
) -> dict[str, dict[str, str | None]]:
    """The libraries to stand in for, each with its symbols and their versions, if any."""
    wants, have = list(wants), set(installed)
    asked = {library for want in wants for library in want.libraries}
    missing: dict[str, dict[str, str | None]] = {
        library: {} for library in asked if library not in have and stem(library) in STANDS_IN_FOR
    }
    owners = {library: re.compile(STANDS_IN_FOR[stem(library)]) for library in missing}
    for symbol, library, version in sorted({s for want in wants for s in want.symbols}, key=str):
        if library in missing:
            missing[library][symbol] = version
        elif library is None:
            for name, owner in owners.items():
                if owner.match(symbol):
                    missing[name].setdefault(symbol, None)
    return dict(sorted(missing.items()))


def _elf_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _hash_table(names: list[str]) -> bytes:
    """DT_HASH over `names`, whose first entry is the null symbol."""
    buckets, chains = [0] * max(1, len(names) // 2), [0] * len(names)
    for index, name in enumerate(names[1:], 1):
        slot = _elf_hash(name) % len(buckets)
        chains[index], buckets[slot] = buckets[slot], index
    return struct.pack(
        f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains
    )


def _version_definitions(names: list[str], string_at: Mapping[str, int]) -> bytes:
    """DT_VERDEF. names: the library's own as base (index 1), then the versions'."""
    out = b""
    for index, name in enumerate(names, 1):
        following = 0 if index == len(names) else 28
        out += struct.pack("<HHHHIII", 1, int(index == 1), index, 1, _elf_hash(name), 20, following)
        out += struct.pack("<II", string_at[name], 0)
    return out


def shared_library(library: str, symbols: Mapping[str, str | None]) -> bytes:
    """An x86-64 ELF shared object: every symbol is a function returning `NO_DEVICE`."""
    code = b"\xb8" + struct.pack("<I", NO_DEVICE) + b"\xc3"  # mov eax, 100; ret
    versions = sorted({version for version in symbols.values() if version})
    number = {version: index for index, version in enumerate(versions, 2)}
    names = ["", *sorted(symbols)]
    strings, string_at = b"\0", dict[str, int]()
    for text in (library, *versions, *names[1:]):
        string_at[text] = len(strings)
        strings += text.encode() + b"\0"
    indices = [0, *(number.get(symbols[name] or "", 1) for name in names[1:])]
    parts = {  # in file order, each aligned to 8; sizes are all that the addresses below need
        "head": bytes(64 + 4 * 56),
        "code": code,
        "hash": _hash_table(names),
        "symbols": bytes(24 * len(names)),
        "strings": strings,
        "versym": struct.pack(f"<{len(names)}H", *indices),
        "verdef": _version_definitions([library, *versions], string_at),
    }
    at, end = {}, 0
    for part, content in parts.items():
        at[part] = end
        end = (end + len(content) + 7) & ~7
    # 0x12: global function; section 1 stands for "defined": there are no section headers
    parts["symbols"] = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", string_at[name], 0x12, 0, 1, at["code"], len(code))
        for name in names[1:]
    )
    # Its own writable page: older loaders write addresses back into it.
    dynamic_at = (end + _PAGE - 1) & ~(_PAGE - 1)
    dynamic = _dynamic(string_at[library], at, len(strings), len(versions))
    parts["head"] = _head(end, dynamic_at, len(dynamic))
    image = bytearray(dynamic_at)
    for part, content in parts.items():
        image[at[part] : at[part] + len(content)] = content
    return bytes(image) + dynamic


def _dynamic(soname: int, at: Mapping[str, int], strings: int, versions: int) -> bytes:
    """The dynamic section. strings: bytes of their table; versions: how many are defined."""
    tags = [
        (_DT_SONAME, soname),
        (4, at["hash"]),
        (5, at["strings"]),
        (6, at["symbols"]),
        (10, strings),
        (11, 24),
    ]
    if versions:  # DT_VERSYM, DT_VERDEF, DT_VERDEFNUM
        tags += [(0x6FFFFFF0, at["versym"]), (0x6FFFFFFC, at["verdef"]), (0x6FFFFFFD, versions + 1)]
    return b"".join(struct.pack("<qQ", *tag) for tag in [*tags, (0, 0)])


def _head(end: int, dynamic_at: int, size: int) -> bytes:
    """The file's header, and those of its four segments. size: of the dynamic section."""
    magic = b"\x7fELF\x02\x01\x01" + bytes(9)
    where = (dynamic_at, dynamic_at, dynamic_at, size, size)
    segments = [
        (1, 5, 0, 0, 0, end, end, _PAGE),  # PT_LOAD, read and execute
        (1, 6, *where, _PAGE),
        (2, 6, *where, 8),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # PT_GNU_STACK: no executable stack
    ]
    own = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    return magic + own + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)


def _is_found_by_loader(file: Path) -> bool:
    """By torch's run path, or in a repaired wheel's NAME.libs. triton's copy is not."""
    return file.parts[0] == "nvidia" or file.parts[0].endswith(".libs")


def write_stand_ins(packages: Path, out: Path) -> list[str]:
    """Write into `out`, for LD_LIBRARY_PATH, a stand-in for each CUDA library that the `.so` files
    under `packages` ask for and that is not there itself; their names."""
    files = [file for file in packages.rglob("*.so*") if file.is_file()]
    wants = [want for want in map(read_wants, files) if want is not None]
    missing = missing_libraries(
        wants, [file.name for file in files if _is_found_by_loader(file.relative_to(packages))]
    )
    out.mkdir(parents=True, exist_ok=True)
    for library, symbols in missing.items():
        (out / library).write_bytes(shared_library(library, symbols))
    return list(missing)
