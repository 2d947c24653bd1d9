"""Run by every Python that has this folder on PYTHONPATH: fill the gaps of a trimmed set of
packages."""

import json
import pathlib

import patchqueue_shims
import patchqueue_stand_ins

_plan = json.loads((pathlib.Path(__file__).with_name("patchqueue_site.json")).read_text())
patchqueue_stand_ins.install(_plan["stand_ins"])
patchqueue_shims.install(_plan["shims"])
