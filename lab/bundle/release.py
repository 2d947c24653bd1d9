"""Pack a patched release for a GPU host that reaches no package index: the wheel, its dependencies,
SCRIPTS, and in untouched/ the release's own content of what the queue changed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from patchqueue import RELEASE
from patchqueue.environments.lock import body, cuda_libraries, until
from patchqueue.environments.testing import pinned_torch
from patchqueue.outcome import Refused
from patchqueue.upstream.pins import Pin
from patchqueue.wheels import Target, build

from . import assemble, carried, packages, untouched
from .assemble import Bundle, Contents, Wanted
from .host import Host
from .rules import RULES, Rules

SCRIPTS = ("tests/gpu", "tests/models")  # what runs on the host, and the configs of its models
SCHEMA = 1


def pack(root: Path, pin: Pin, host: Host, wanted: Wanted) -> Bundle:
    """Write dist/bundle/<tag>/ for a host. Raises Refused with uv's or apply's reason."""
    pinned = pinned_torch(root, pin)
    if pinned not in ("", host.torch) and not wanted.carry_torch:
        what = f"pins torch {pinned}, and {host.name} has {host.torch}"
        raise Refused.of("other-torch", pin.tag, what, "pack it too: --carry-torch")
    target = Target(host.python, host.platform.split("-")[0])
    built = build(root, pin, target, None, root / "dist")
    torch = torch_of(pin, host, wanted.sm) if wanted.carry_torch else None
    host = host.less(torch.besides) if torch else host
    rules = RULES.release.of(pin.version, wanted.flash)
    about = {
        "schema": SCHEMA,
        "version": str(pin.version),
        "tag": pin.tag,
        "local_version": built.version,
        "queue_release": RELEASE,
        "tree": built.record["tree"]["after"],
        "wheel": {"file": built.path.name, "sha256": built.sha256},
        "resolved_as_of": pin.resolve_as_of.isoformat(),
    }

    def tree(scratch: Path) -> list[tuple[Path, str]]:
        """The patched wheel's files, and what runs on a GPU."""
        with zipfile.ZipFile(built.path) as wheel:
            wheel.extractall(scratch / "tree")
        untouched.lay(built, scratch / untouched.FOLDER)
        scripts = [(root / name, name) for name in SCRIPTS]
        return [(scratch / name, name) for name in ("tree", untouched.FOLDER)] + scripts

    locked = resolve(pin, host, rules, torch.holds if torch else ())
    contents = Contents(pin.tag, about, locked, rules, tree, one_gpu=wanted.flash)
    return assemble.pack(root, contents, host, torch, wanted)


def torch_of(pin: Pin, host: Host, sm: int) -> carried.Carried | None:
    """The packed torch of a release; None where the host has that torch. Raises Refused."""
    excluded = RULES.release.of(pin.version, flash=False).packages
    return carried.pack(f"sglang=={pin.version}", pin.resolve_as_of, host, sm, excluded)


def resolve(pin: Pin, host: Host, rules: Rules, holds: Iterable[str]) -> str:
    """What is installed, as hashed requirements: the release's dependencies as of its day. holds:
    versions of what is made for a carried torch. Torch itself is left out here, so that nothing
    else would hold them to it."""
    words = ["--exclude-newer", until(pin.resolve_as_of), "--prerelease=allow"]
    wanted = [f"sglang=={pin.version}", "dill", *holds]
    excluded = [*host.brings, *rules.packages, *cuda_libraries(RULES.cuda)]
    return without("sglang", body(packages.Index(host).resolve(wanted, words, excluded)))


def without(package: str, locked: str) -> str:
    """Hashed requirements, less a package."""
    return re.sub(rf"(?m)^{package}==.*\n(?:    --hash.*\n)*", "", locked)
