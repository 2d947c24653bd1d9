"""tests/gpu/random_states.py on tiny layers, their kernels interpreted; a replay is a call."""

from host.references import compare_ssd  # starts the interpreter

import sys
from pathlib import Path

import torch
from host import interpreted
from host.references import compare_gdn, compare_scan

sys.path.append(str(Path(__file__).parents[3] / "gpu"))
import random_states
import random_states_layers as layers

SIZES, SLOTS, CHUNK = (6, 40), 40, 16


class Faulty:
    """A layer whose captured prefill also does what `fault` says."""

    def __init__(self, layer, fault):
        self.layer, self.fault = layer, fault

    def __getattr__(self, name):
        return getattr(self.layer, name)

    def captured(self, pool, tables, rows):
        output = self.layer.captured(pool, tables, rows)
        slot = tables.slots[0]
        if self.fault == "state":
            pool.ssm[slot, 0, 0, 0] += 1
        if self.fault == "window":
            pool.conv[slot, 0, 0] += 1
        if self.fault == "canary":
            pool.ssm[-1, 0, 0, 0] += 1
        if self.fault == "behind":
            output[int(tables.plan.cu[-1]) :] = 1
        if self.fault == "company" and tables.plan.cu[2] > tables.plan.cu[1]:
            output[0] += 1
        return output


def compare(family, batches, fault="", seed=3):
    """Of each check how often it compared, and where it was first wrong; `worst`: how far apart
    what is near was; `requests`: how many of each kind; `held`: whether nothing was wrong."""
    torch.manual_seed(seed)
    made = layers.LAYERS[family]("cpu", tiny=True)
    interpreted.resolve_late(compare_gdn.fla())
    interpreted.choose_first_configs(compare_gdn.fla())
    with compare_scan.small(CHUNK):
        found, ledger = random_states.examine(Faulty(made, fault), SIZES, seed, batches, SLOTS)
    checks = found["checks"]
    return dict(
        compared={what: check["compared"] for what, check in checks.items()},
        wrong={what: check["first"] for what, check in checks.items() if check["wrong"]},
        worst={what: check["worst"] for what, check in checks.items() if "near" in what},
        requests=found["requests"],
        held=ledger.held,
    )


if __name__ == "__main__":
    interpreted.main(compare)
