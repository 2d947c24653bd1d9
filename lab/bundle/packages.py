"""Packages of the index for a GPU host: resolved and installed by uv, trimmed, packed, and kept in
the tool's cache by what they are made of."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchqueue.environments import lock
from patchqueue.files import atomic, run
from patchqueue.outcome import Refused
from patchqueue.upstream.source import cache_folder

from .host import Host

LOG = logging.getLogger(__name__)
FACTS = "facts.json"
INSTALL = ("pip", "install", "--no-deps", "--no-build", "--require-hashes", "--link-mode=hardlink")


@dataclass(frozen=True)
class Index:
    """The package index as a host needs it."""

    host: Host

    @property
    def _target(self) -> list[str]:
        return ["--python-version", self.host.python, "--python-platform", self.host.platform]

    def resolve(
        self, wanted: Sequence[str], words: Iterable[str] = (), excluded: Iterable[str] = ()
    ) -> dict[str, Any]:
        """uv's lock of what these require. Raises Refused with uv's reason."""
        try:
            return lock.resolve(wanted, [*self._target, *words], sorted(set(excluded)))
        except run.Failed as failure:
            raise _refused(f"resolve {wanted[0].replace('==', '-')}", failure) from None

    def install(self, locked: str, site: Path, what: str) -> None:
        """Install hashed requirements into a folder. Raises Refused with uv's reason."""
        wanted = site.with_name(f"{site.name}.txt")
        wanted.write_text(locked)
        where = ["--target", str(site), "--requirement", str(wanted)]
        try:
            run.uv(*INSTALL, *self._target, *where)
        except run.Failed as failure:
            raise _refused(f"install {what}", failure) from None


def _refused(what: str, failure: run.Failed) -> Refused:
    step = "see the host description, and lab/bundle/rules.toml"
    return Refused.of("no-bundle", f"uv could not {what}", failure.said, step)


def kept(
    kind: str, made_of: object, said: str, make: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """A folder of the cache and the facts in it. Where it is not there yet, `make` leaves archives
    in a scratch folder, and returns the facts. facts.json comes last, so that a killed run leaves
    nothing that looks whole. kind: of the folder; made_of: all that it depends on; said: what is
    logged before it is made."""
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]
    folder = cache_folder() / kind / key
    if not (folder / FACTS).is_file():
        LOG.info(said)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tmp-") as scratch:
            facts = make(Path(scratch))
            for archive in Path(scratch).glob("*.tar.xz"):
                os.replace(archive, folder / archive.name)
        atomic.write(folder / FACTS, (json.dumps(facts, indent=1) + "\n").encode())
    return folder, json.loads((folder / FACTS).read_text())
