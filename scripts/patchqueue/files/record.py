"""The text of a TOML or JSON file as a value of a class that says what may stand in it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..outcome import Problem, Refused

T = TypeVar("T")


def toml(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """Raises Refused, a problem named `bad` of the file `where`: what is wrong, and in which
    field."""
    try:
        return msgspec.toml.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(error, "TOML", where, bad, step) from None


def json(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """The same of JSON."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(error, "JSON", where, bad, step) from None


def refused(error: Exception, form: str, where: str, bad: str, step: str) -> Refused:
    of_field = isinstance(error, msgspec.ValidationError)
    return Refused(Problem(bad, where, str(error) if of_field else f"is no {form}: {error}", step))
