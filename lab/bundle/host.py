"""A GPU host's description (upstream/hosts/*.toml): what it brings itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from patchqueue.files import record
from patchqueue.outcome import Refused

FOLDER = Path("upstream/hosts")
DEFAULT = FOLDER / "torch-2.11.toml"


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A description. python: "3.12"; platform: uv's name of it; torch: its version; brings:
    packages that are not packed; name: of the file."""

    python: str
    platform: str
    torch: str
    brings: tuple[str, ...]
    name: str = ""

    def less(self, packages: Iterable[str]) -> Host:
        """The host as if it did not bring these packages: they are packed all the same."""
        return replace(self, brings=tuple(name for name in self.brings if name not in packages))


def load(path: Path) -> Host:
    """The host that `path` describes. Raises Refused naming the file and what is wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        step = f"describe the host as {DEFAULT} does"
        what = f"cannot be read: {error.strerror}"
        raise Refused.of("no-host", str(path), what, step) from None
    host = record.toml(content, Host, str(path), "bad-host", f"see {DEFAULT}")
    return replace(host, name=path.stem)
