"""The tool as a program."""

import importlib
import sys


def run(command_line: str = "patchqueue.commands.cli") -> int:
    """Run the command line of that module. What it imports takes longer than many a command, and
    Ctrl-C may come meanwhile."""
    try:
        return int(importlib.import_module(command_line).main())
    except KeyboardInterrupt:
        print("interrupted; nothing was begun yet", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
