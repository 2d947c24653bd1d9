"""What an index and a release's record say of a wheel, read from the file itself."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ..files.tree import sha256
from ..outcome import Refused
from ..queue.released import Wheel
from ..upstream.source import file_sha256

BESIDE = ".metadata"  # PEP 658: the name of a wheel's METADATA beside it is the wheel's and this


@dataclass(frozen=True)
class Described:
    """A wheel on disk. metadata: its METADATA."""

    wheel: Wheel
    metadata: bytes


def describe(path: Path) -> Described:
    """Read a wheel. Raises Refused where it is none."""
    step = "leave it out, or build it again"
    try:
        parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            info = _info(archive)
            record, metadata = archive.read(f"{info}RECORD"), archive.read(f"{info}METADATA")
    except (InvalidWheelFilename, zipfile.BadZipFile, KeyError) as error:
        raise Refused.of("no-wheel", str(path), f"is no wheel: {error}", step) from None
    fields, _ = parse_email(metadata)
    return Described(
        Wheel(
            file=path.name,
            sha256=file_sha256(path),
            size=path.stat().st_size,
            record=sha256(record),
            metadata=sha256(metadata),
            python=fields.get("requires_python", ""),
        ),
        metadata,
    )


def _info(archive: zipfile.ZipFile) -> str:
    names = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    (folder,) = [name for name in names if name.endswith(".dist-info")] or ["no .dist-info"]
    return f"{folder}/"
