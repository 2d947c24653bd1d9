"""Data of a TOML or JSON file as a value of a class that says what is allowed in it.

What is wrong with it is raised as Refused: a problem named `bad` of the file `where`, which says
the field.
"""

from __future__ import annotations

import datetime
import json as reader
from typing import Any, TypeVar

import msgspec

from ..outcome import Problem, Refused

T = TypeVar("T")
DATES = (datetime.date, datetime.datetime)
LONGEST = 320  # characters: an object of a few names and hashes


def toml(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    try:
        data = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(Problem(bad, where, f"is not TOML: {error}", step)) from None
    return value(data, kind, where, bad, step)


def json(content: bytes, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """NaN is a number here, as Python writes it."""
    try:
        data = reader.loads(content)
    except ValueError as error:
        raise Refused(Problem(bad, where, f"is no JSON: {error}", step)) from None
    return value(data, kind, where, bad, step)


def value(data: Any, kind: type[T], where: str, bad: str, step: str = "") -> T:
    """The value that a decoder made of a file, or a part of it."""
    try:
        # a version, or a range of versions, is made of its text
        return msgspec.convert(
            data, kind, dec_hook=lambda made, text: made(text), builtin_types=DATES
        )
    except msgspec.ValidationError as error:
        raise Refused(Problem(bad, where, str(error), step)) from None


def text_of(value: Any, depth: int = 0) -> str:
    """A value as JSON that is short in a diff: a list or an object is one line where that is
    no longer than LONGEST, else each thing that it holds begins one.

    >>> print(text_of({"a": [1, 2], "b": {"c": "x" * 400}})[:24])
    {
     "a": [1, 2],
     "b": {
    """
    whole = reader.dumps(value)
    if (len(whole) <= LONGEST and depth) or not isinstance(value, (dict, list)):
        return whole
    pad = " " * (depth + 1)
    rows = (
        [f"{pad}{reader.dumps(key)}: {text_of(each, depth + 1)}" for key, each in value.items()]
        if isinstance(value, dict)
        else [f"{pad}{text_of(each, depth + 1)}" for each in value]
    )
    begin, end = "{}" if isinstance(value, dict) else "[]"
    ending = "" if depth else "\n"
    return f"{begin}\n" + ",\n".join(rows) + f"\n{' ' * depth}{end}{ending}"
