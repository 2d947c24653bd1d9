"""Whether Triton miscompiled a kernel: the machine code of Hopper's asynchronous matrix products.

For sweep_experts.py, which chooses no tile of such a kernel, and for the tests that compile
kernels.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

LABEL = re.compile(r"^(\.L_\w+):")
BRANCH = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
PRODUCT = re.compile(r"\b[A-Z]GMMA\.\S+ R\d+, (?P<left>\S+),")  # wgmma: HGMMA, QGMMA, IGMMA
WAIT = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")


def disassembled(cubin: bytes) -> str:
    """The instructions of a cubin, by the disassembler that Triton's wheel brings."""
    from triton.backends import nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "kernel.cubin")
        code.write_bytes(cubin)
        return subprocess.run([tool, "-c", code], text=True, capture_output=True, check=True).stdout


def miscompiled(cubin: bytes) -> bool:
    """Whether a product may still be under way where its operands are overwritten."""
    return bool(products_over_back_edges(disassembled(cubin)))


def products_over_back_edges(text: str) -> list[str]:
    """The products whose left operand lies in registers, and that may be under way where a loop
    begins anew. The next round overwrites these registers without a wait (triton-lang/triton#9433).
    text: as `disassembled` gives it. A product that ends a group has gsb0 as its last operand. A
    wait leaves the given number of groups under way, the newest ones. Branches forward are not
    followed."""
    found: list[str] = []
    seen: set[str] = set()
    groups: list[list[str]] = [[]]  # under way, the newest last; the last one is still open
    for line in text.splitlines():
        if label := LABEL.match(line):
            seen.add(label[1])
        elif product := PRODUCT.search(line):
            if re.match(r"R\d", product["left"]):
                groups[-1].append(line.strip())
            if "gsb0" in line:
                groups.append([])
        elif wait := WAIT.search(line):
            groups = groups[-1 - int(wait[1], 16) :]
        elif (branch := BRANCH.search(line)) and branch[1] in seen:
            found += [left for group in groups for left in group if left not in found]
    return found
