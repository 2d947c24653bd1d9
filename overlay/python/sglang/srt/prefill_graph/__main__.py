"""`python -m sglang.srt.prefill_graph [--json]`: what this tree was made of, and the prefill graph of every server here."""

from __future__ import annotations

import argparse
import dataclasses
import json

from . import report


def main() -> int:
    """Print the report; always 0."""
    parser = argparse.ArgumentParser(prog="python -m sglang.srt.prefill_graph", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object: tree, servers")
    as_json = parser.parse_args().json
    made_of, records = report.provenance(), report.read_all()
    if as_json:
        servers = [dataclasses.asdict(record) for record in records]
        print(json.dumps({"tree": dataclasses.asdict(made_of), "servers": servers}, indent=1))
    else:
        print("\n".join(report.lines(made_of, records)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
