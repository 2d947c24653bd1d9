"""The tool as a program."""

import importlib
import sys


def run(command_line: str = "patchqueue.commands") -> int:
    """Run the command line of that module. Ctrl-C may come while it is imported."""
    try:
        return int(importlib.import_module(command_line).main())
    except KeyboardInterrupt:
        print("interrupted; nothing was begun yet", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
