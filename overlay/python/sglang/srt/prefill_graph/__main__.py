"""`python -m sglang.srt.prefill_graph [--json | --verify [--json]]`: what this tree was made of,
and the prefill graph of every server here; or whether the tree's files are still those that the
queue made.

Run as `python …/sglang/srt/prefill_graph`, it needs none of the libraries that sglang imports."""

from __future__ import annotations

import argparse
import dataclasses
import json

if __package__:
    from .report import provenance, records
else:  # the folder itself is run
    from report import provenance, records


def main() -> int:
    """Print the report, or verify. 1 where a file differs from what the queue made, 2 where nothing
    can be compared; else 0."""
    parser = argparse.ArgumentParser(prog="python -m sglang.srt.prefill_graph", description=__doc__)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare every file of sglang with the queue's listing, and name each that differs",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: tree and servers, or tree and verification",
    )
    options = parser.parse_args()
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


def _verify(made_of: provenance.Provenance, as_json: bool) -> int:
    found = provenance.verify()
    if as_json:
        print(
            json.dumps(
                {
                    "tree": dataclasses.asdict(made_of),
                    "verification": {**dataclasses.asdict(found), "intact": found.intact},
                },
                indent=1,
            )
        )
    else:
        print(f"this tree: {made_of}", *provenance.lines(found), sep="\n")
    return 2 if found.reason else int(not found.intact)


if __name__ == "__main__":
    raise SystemExit(main())
