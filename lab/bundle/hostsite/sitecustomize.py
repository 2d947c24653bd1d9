"""Run by every Python that has this folder on PYTHONPATH: fill the gaps of a trimmed set of
packages."""

import json
import pathlib
import site

import patchqueue_stand_ins

_here = pathlib.Path(__file__).parent
_plan = json.loads((_here / "patchqueue_site.json").read_text())
patchqueue_stand_ins.install(_plan["stand_ins"])
# Python runs the .pth files of no folder that is on PYTHONPATH; CuTe's compiler needs its own.
site.addsitedir(str(_here.with_name("site")))
