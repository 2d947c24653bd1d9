"""Small ELF files with sections, symbols and code for GPUs: made here, without a compiler."""

import struct
from collections.abc import Sequence

CODE, PTX = 2, 1
HEADERS = (64, 96, 112)  # seen in CUDA's libraries, for entries that are packed and named
KINDS = {".dynstr": 3, ".dynamic": 6, ".dynsym": 11}


def fat_binary(*programs: tuple[int, int, bytes]) -> bytes:
    """A fat binary of programs: kind, compute capability, bytes."""
    entries = b""
    for number, (kind, sm, code) in enumerate(programs):
        size = HEADERS[number % len(HEADERS)]
        head = struct.pack("<HHIQIIHHI", kind, 0x101, size, len(code), 0, 0, 0, 0, sm)
        entries += head.ljust(size, b"\xee") + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def library(sections: dict[str, bytes], mapped: Sequence[str], kind: int = 3) -> bytes:
    """An ELF file of sections; `mapped`: those that say that a loader maps them."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    order = [*sections]
    body, rows = b"", [bytes(64)]
    for name, content in [*sections.items(), (".shstrtab", names)]:
        flags = 2 if name in mapped else 0
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        strings = order.index(".dynstr") + 1 if name in KINDS and ".dynstr" in order else 0
        where = (0, 64 + len(body), len(content), strings)
        rows.append(struct.pack("<IIQQQQIIQQ", at, KINDS.get(name, 1), flags, *where, 0, 1, 0))
        body += content
    table = 64 + len(body)
    counts = (64, 56, 0, 64, len(rows), len(rows) - 1)
    own = struct.pack("<HHIQQQIHHHHHH", kind, 62, 1, 0, 0, table, 0, *counts)
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + own + body + b"".join(rows)


def linked(
    needed: Sequence[str] = (),
    wants: Sequence[str] = (),
    offers: Sequence[str] = (),
    code: bytes = b"",
) -> bytes:
    """A library that needs others, wants functions of them, offers its own, and has `code`."""
    strings, at = b"\0", {}
    for name in (*needed, *wants, *offers):
        at[name] = len(strings)
        strings += name.encode() + b"\0"
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", at[name], 0x12, 0, int(name in offers), 0, 0)
        for name in (*wants, *offers)
    )
    dynamic = b"".join(struct.pack("<qQ", 1, at[name]) for name in needed) + bytes(16)
    parts = {".dynstr": strings, ".dynsym": symbols, ".dynamic": dynamic, ".nv_fatbin": code}
    return library(parts, [*parts])
