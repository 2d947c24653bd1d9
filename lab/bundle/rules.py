"""What a bundle leaves out: rules.toml."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from packaging.version import Version

from patchqueue.environments.lock import LeftOut
from patchqueue.files import record


class Trimmed(Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of packed packages that are removed. patterns: globs below the folder of packages;
    modules: of them, those that need a stand-in; unless: the option that keeps them."""

    reason: str
    patterns: tuple[str, ...]
    modules: str = ""
    unless: str = ""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out of a release, or of another engine."""

    trimmed: tuple[Trimmed, ...]
    left_out: tuple[LeftOut, ...] = ()

    def of(self, version: Version, flash: bool) -> Rules:
        """The rules for a release. flash: its FlashAttention 3 is kept."""
        return Rules(
            tuple(rule for rule in self.trimmed if not (flash and rule.unless == "flash")),
            tuple(rule for rule in self.left_out if rule.is_for(version)),
        )

    @property
    def packages(self) -> list[str]:
        """Those that are not packed."""
        return [name for rule in self.left_out for name in rule.names]

    @property
    def stand_ins(self) -> list[str]:
        """The modules that the host needs stand-ins for."""
        modules = [rule.modules for rule in self.left_out] + [rule.modules for rule in self.trimmed]
        return sorted({name for names in modules for name in names.split()})


class Torch(Struct, frozen=True, forbid_unknown_fields=True):
    """libraries: parts of CUDA that torch requires; stood_in_for: CUDA libraries, by their names up
    to ".so", and why no run calls them."""

    libraries: str
    stood_in_for: dict[str, str]
    trimmed: tuple[Trimmed, ...]


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """cuda: parts of CUDA that neither a release nor another engine is packed with; trimmed: of
    both."""

    cuda: str
    trimmed: tuple[Trimmed, ...]
    release: Rules
    peer: Rules
    torch: Torch


_FILE = Path(__file__).with_name("rules.toml")
RULES = record.toml(_FILE.read_bytes(), File, _FILE.name, "bad-rules")
