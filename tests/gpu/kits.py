#!/usr/bin/env python3
"""Run the attention cases that a release brings, on the untouched tree and on the patched one.

    python kits.py --out RESULTS                                    in an unpacked bundle
    python kits.py --out RESULTS --tree F --site BUNDLE …           with another patched tree

sglang 0.5.13.post1 to 0.5.23 carry small cases with answers in plain torch
(sglang/test/kits/attention_unittest). Those of recurrent layers are asked for eagerly and as split
ops with padded rows, Mamba2's with the heads of published models too. A case that passes on the
untouched tree alone fails the run. Writes RESULTS/kits.json. Exit code 0: none does; 3: the release
brings no cases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import commandline
import judging
import launch
import machine
from kits_cases import NO_KIT

HERE = Path(__file__).resolve().parent
RESULT = "kits.json"
KINDS = ("mamba2", "gdn", "kda")
UNTOUCHED, PATCHED = "untouched", "patched"


def main(words: Sequence[str] | None = None) -> int:
    options = _options(words)
    place = commandline.place_of(options)
    before = (
        commandline.with_tree(place, options, options.against)
        if options.against
        else commandline.untouched_place(place, options)
    )
    facts = machine.describe(place, options)
    places = {UNTOUCHED: before, PATCHED: place}
    found = {name: ask(here, name, options) for name, here in places.items()}
    facts["kits"] = found
    (place.out / RESULT).write_text(json.dumps(facts, indent=1) + "\n")
    show(found)
    return 1 if broken(found[UNTOUCHED], found[PATCHED]) else 0


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commandline.add_place(parser)
    commandline.add_untouched(parser)
    commandline.add_against(parser)
    parser.add_argument(
        "--kind", nargs="+", choices=KINDS, default=[*KINDS], help="kinds of layer (default: all)"
    )
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds that one tree may take (default 300)"
    )
    return parser.parse_args(words)


def ask(place: launch.Place, name: str, options: argparse.Namespace) -> dict[str, str]:
    """One tree's cases: why each failed, or "". Ends the run with a sentence where the tree has
    none, or its process ended early."""
    out, log = place.out / f"kits.{name}.json", place.out / f"kits.{name}.log"
    out.unlink(missing_ok=True)
    began = time.time()
    with log.open("wb") as told:
        words = [place.python, str(HERE / "kits_cases.py"), str(out), *options.kind]
        process = subprocess.Popen(
            words,
            env=place.environment(),
            cwd=place.out,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(options.limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            launch.kill(process)
    said = log.read_text(errors="replace")
    if code == NO_KIT:
        print(said.splitlines()[-1], file=sys.stderr)
        raise SystemExit(NO_KIT)
    if code != 0:
        why = f"exit code {code}" if code is not None else f"not done in {options.limit:.0f} s"
        sys.exit(f"the {name} tree's cases: {why}; {judging.error(said)}")
    commandline.say(f"{name}: {time.time() - began:.0f} s")
    return json.loads(out.read_text())


def broken(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The cases that the untouched tree alone passes."""
    return [name for name, why in before.items() if not why and after.get(name, "was not run")]


def show(found: dict[str, dict[str, str]]) -> None:
    before, after = found[UNTOUCHED], found[PATCHED]
    print(f"{'cases':<18} {'untouched':>12} {'patched':>12}")
    for kind in dict.fromkeys(" ".join(name.split()[:2]) for name in before):
        ours = [name for name in before if name.startswith(f"{kind} ")]
        counts = [sum(not tree.get(name, "-") for name in ours) for tree in (before, after)]
        cells = " ".join(f"{f'{count} of {len(ours)}':>12}" for count in counts)
        print(f"{kind:<18} {cells}")
    for name in broken(before, after):
        print(f"FAIL {name}: {after.get(name, 'was not run')}")
    for name in [name for name, why in before.items() if why]:
        print(f"     {name}, untouched: {before[name]}")


if __name__ == "__main__":
    raise SystemExit(main())
