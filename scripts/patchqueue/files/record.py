"""Data of a TOML or JSON file as a value of a class that says what is allowed in it.

What is wrong with it is raised as Refused: a problem named `bad`, of the file `where`.
"""

from __future__ import annotations

import datetime
import json as reader
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..outcome import Refused

T = TypeVar("T")
DATES = (datetime.date, datetime.datetime)


def toml(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    try:
        data = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused.of(bad, where, f"is not TOML: {error}", step) from None
    return value(data, kind, where, bad, step)


def json(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """NaN is a number here, as Python writes it."""
    try:
        data = reader.loads(content)
    except ValueError as error:
        raise Refused.of(bad, where, f"is no JSON: {error}", step) from None
    return value(data, kind, where, bad, step)


def value(data: Any, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """The value that a decoder made of a file, or a part of it."""
    try:
        # a version, or a range of versions, is made of its text
        return msgspec.convert(
            data, kind, dec_hook=lambda made, text: made(text), builtin_types=DATES
        )
    except msgspec.ValidationError as error:
        raise Refused.of(bad, where, str(error), step) from None


def text_of(value: Mapping[str, Any]) -> str:
    """A record as JSON that is short in a diff: one line for each of its names."""
    rows = (f" {reader.dumps(name)}: {reader.dumps(each)}" for name, each in value.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"
