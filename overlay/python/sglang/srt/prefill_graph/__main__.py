"""`python -m sglang.srt.prefill_graph`, or `python …/sglang/srt/prefill_graph`, which needs none of
the libraries that sglang imports."""

from __future__ import annotations

import argparse
import dataclasses
import json

if __package__:
    from .report import provenance, records, requirement
else:  # the folder itself is run
    from report import provenance, records, requirement

DESCRIPTION = """What this tree was made of, and for each scheduler of a server here:
why its prefill graph is on or off, and how many prefills ran on it.
Run as `python DIR/sglang/srt/prefill_graph`, it needs no library of sglang's.
"""
CODES = """
exit codes of --require:
  0  every scheduler runs TREE
  1  one runs another tree
  2  TREE or another word is not understood
  3  one left no record: unpatched, or not ready yet
  4  no scheduler runs here
"""


def main() -> int:
    """Print the report, verify, or compare what runs. The code that the process ends with: of
    --require as CODES has it; of --verify 1 where a file differs, 2 where nothing can be compared;
    else 0."""
    parser = _parser()
    options = parser.parse_args()
    if options.pid is not None and not options.require:
        parser.error("--pid goes with --require")
    if options.require:
        return _require(options.require, options.pid, options.json)
    made_of = provenance.read()
    if options.verify:
        return _verify(made_of, options.json)
    found = records.read_all()
    if options.json:
        servers = [dataclasses.asdict(record) for record in found]
        print(json.dumps({"tree": dataclasses.asdict(made_of), "servers": servers}, indent=1))
    else:
        print("\n".join(records.lines(made_of, found)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang.srt.prefill_graph",
        description=DESCRIPTION,
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    verify = "compare every file of sglang with the queue's listing, and name each that differs"
    what.add_argument("--verify", action="store_true", help=verify)
    what.add_argument(
        "--require",
        metavar="TREE",
        type=requirement.digits,
        help="succeed only if every scheduler on this host runs the tree of this hash, as a"
        " server's log or --verify prints it; its first 12 digits are enough",
    )
    pid = "with --require: look only at this process and those that descend from it"
    parser.add_argument("--pid", type=int, help=pid)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _require(wanted: str, below: int | None, as_json: bool) -> int:
    found = requirement.require(wanted, below)
    if as_json:
        values = {**dataclasses.asdict(found), "answer": found.answer.name.lower()}
        print(json.dumps(values, indent=1))
    else:
        print(found.sentence)
    return int(found.answer)


def _verify(made_of: provenance.Provenance, as_json: bool) -> int:
    found = provenance.verify()
    if as_json:
        verification = {**dataclasses.asdict(found), "intact": found.intact}
        values = {"tree": dataclasses.asdict(made_of), "verification": verification}
        print(json.dumps(values, indent=1))
    else:
        text = "\n".join([f"this tree: {made_of}", *provenance.lines(found)])
        print(text.encode("utf-8", "backslashreplace").decode())  # a name need not be UTF-8
    return 2 if found.reason else int(not found.intact)


if __name__ == "__main__":
    raise SystemExit(main())
