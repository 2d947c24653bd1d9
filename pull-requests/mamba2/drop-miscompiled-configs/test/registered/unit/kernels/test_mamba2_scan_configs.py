"""Configs of Mamba2's chunk scan that Triton compiles right for sm90. No GPU."""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest.mock import patch

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.kernels.ops.mamba.triton_ops import autotune, ssd_chunk_scan

register_cpu_ci(est_time=40, suite="base-a-test-cpu")

SCAN = ssd_chunk_scan._chunk_scan_fwd_kernel
SIZES = {"chunk_size": 256, "hdim": 128, "dstate": 128}
DISASSEMBLER = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
FLOATS = {"dt_ptr", "dA_cumsum_ptr", "D_ptr", "states_ptr", "initstates_ptr"}
INTEGERS = {"seq_idx_ptr", "chunk_indices_ptr", "chunk_offsets_ptr"}
CONSTANTS = dict.fromkeys(
    "IS_CAUSAL HAS_D HAS_SEQ_IDX HAS_INITSTATES IS_TRITON_22".split(), True
)
CONSTANTS |= {"D_HAS_HDIM": False, "HAS_Z": False, "BLOCK_SIZE_DSTATE": 128, "batch": 1}
INNERMOST = "cb_csize_k x_hdim C_dstate states_dstate init_states_dstate dt_csize"
INNERMOST += " dA_cs_csize seq_idx_seqlen out_hdim D_head"
CONSTANTS |= {f"stride_{name}": 1 for name in INNERMOST.split()}


def _kept(capability, is_nvidia=True):
    with (
        patch.object(autotune, "is_nvidia", is_nvidia, create=True),
        patch("torch.cuda.get_device_capability", return_value=capability),
    ):
        return SCAN.early_config_prune(SCAN.configs, SIZES)


def _takes_wgmma(config):
    return config.num_warps % 4 == 0 and config.kwargs["BLOCK_SIZE_M"] % 64 == 0


def _kind(name):
    if name in FLOATS or name in INTEGERS:
        return "*fp32" if name in FLOATS else "*i32"
    return "*bf16" if name.endswith("_ptr") else "i32"


def _unawaited(config):
    """The wgmma of a config whose operand in registers is read where the loop begins anew."""
    kernel = SCAN.fn
    unused = {name: None for name in kernel.arg_names if "_z_" in name}
    constants = CONSTANTS | config.kwargs | unused | {"z_ptr": None, "out_x_ptr": None}
    types = {n: "constexpr" if n in constants else _kind(n) for n in kernel.arg_names}
    given = [i for i, name in enumerate(types) if name not in constants]
    aligned = {(i,): [["tt.divisibility", 16]] for i in given}
    source = ASTSource(kernel, types, constants, aligned)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(made.asm["cubin"])
        cubin.flush()
        code = subprocess.check_output([DISASSEMBLER, "-c", cubin.name], text=True)
    labels, groups = set(), [[]]  # groups of wgmma under way, the newest is open
    for line in code.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels.add(label[1])
        elif wgmma := re.search(r"\bHGMMA\.\S+ R\d+, (\S+),", line):
            groups[-1] += [line] if wgmma[1][0] == "R" else []
            groups += [[]] if "gsb0" in line else []
        elif wait := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\w+)", line):
            groups = groups[-1 - int(wait[1], 16) :]
        elif jump := re.search(r"\bBRA\b.*`\((\.L_\w+)\)", line):
            if jump[1] in labels and any(groups):
                return sum(groups, [])
    return []


class TestScanConfigs(CustomTestCase):
    def test_only_sm90_loses_configs(self):
        every = _kept((8, 0))
        self.assertEqual(_kept((10, 0)), every)
        self.assertEqual(_kept((9, 0), is_nvidia=False), every)
        left = [c for c in every if not _takes_wgmma(c) or c.num_stages == 1]
        self.assertTrue(0 < len(left) < len(every))
        self.assertEqual(_kept((9, 0)), left)

    @unittest.skipUnless(DISASSEMBLER.exists(), "triton brings no nvdisasm")
    def test_what_sm90_keeps_waits_for_its_wgmma(self):
        for config in filter(_takes_wgmma, _kept((9, 0))):
            self.assertEqual(_unawaited(config), [], config)


if __name__ == "__main__":
    unittest.main()
