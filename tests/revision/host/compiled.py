"""A Triton kernel compiled for a GPU that need not be there: what it takes of it, and its PTX.

The interpreter accepts what the compiler rejects, so a kernel that is interpreted in one test is
compiled in another. This works in an ordinary test process only: where TRITON_INTERPRET is set,
there are no kernels to compile.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import machine_code

# an asynchronous product whose left operand lies in registers: the disassembler, which takes half a
# second, finds as many as there are in the PTX
FROM_REGISTERS = re.compile(r"\bwgmma\.mma_async\S*\s*\{[^}]*\},\s*\{")


@dataclass(frozen=True)
class Compiled:
    """registers: of one thread. spilled: bytes of one thread, stores and loads. shared: bytes of
    one program. ptx: the code. cubin: the same for one kind of GPU."""

    registers: int
    spilled: int
    shared: int
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    @property
    def miscompiled(self):
        """The products whose operands the next round of a loop overwrites."""
        if not FROM_REGISTERS.search(self.ptx):
            return []
        return machine_code.products_over_back_edges(machine_code.disassembled(self.cubin))


def compiled(kernel, signature, constexprs, options=None, capability=90, aligned=None):
    """`kernel` (a triton.jit function) compiled for the `capability` of a GPU: 80, 90, or 100.
    Raises where Triton does.

    signature: Triton's type of each other parameter by name, as {"x_ptr": "*bf16", "rows": "i32"}.
    constexprs: value by name. options: num_warps, num_stages and so on. aligned: names of the
    parameters that 16 divides, as Triton finds out at a launch; all pointers where None.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource

    if aligned is None:
        aligned = [name for name, kind in signature.items() if kind.startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature={name: signature.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=constexprs,
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    # code that was compiled elsewhere lacks the assembler's report
    cache = mock.patch.dict(os.environ, TRITON_CACHE_DIR=str(Path(sys.prefix, "triton")))
    with cache, mock.patch.object(CUDABackend, "make_cubin", _make_cubin):
        made = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options=dict(options or {})
        )
    said = made.metadata.said
    return Compiled(
        registers=int(re.search(r"Used (\d+) registers", said).group(1)),
        spilled=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        shared=made.metadata.shared,
        ptx=made.asm["ptx"],
        cubin=made.asm["cubin"],
    )


def _make_cubin(backend, ptx, metadata, options, capability):
    """Triton's last step, which keeps what Triton's assembler says beside the code."""
    from triton import knobs

    tool = knobs.nvidia.ptxas
    if capability >= 100:
        tool = getattr(knobs.nvidia, "ptxas_blackwell", tool)  # triton 3.6 has two
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE).group(1)
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernel.ptx"), Path(folder, "kernel")
        source.write_text(ptx)
        fused = f"--fmad={str(options.enable_fp_fusion).lower()}"
        command = [tool.path, "-v", fused, f"--gpu-name={target}", source, "-o", made]
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-3000:]
        metadata["said"] = done.stderr
        return made.read_bytes()
