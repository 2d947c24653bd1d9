"""Options that would do nothing beside others: refused, so that nobody believes they did."""

from __future__ import annotations

import argparse

from ..hint import to_type
from ..outcome import Refused


def refuse(options: argparse.Namespace, beside: str, *idle: str) -> None:
    """Raise Refused for each of the options `idle` that is given. beside: what makes them idle, as
    a user types it."""
    command = options.parser.prog.rpartition(" ")[2]
    for name in idle:
        dest = options.parser._option_string_actions[name].dest
        if getattr(options, dest) != options.parser.get_default(dest):
            step = f"leave {name} out; {to_type(command, '--help')} says what each option does"
            raise Refused.of("bad-words", name, f"does nothing {beside}", step)
