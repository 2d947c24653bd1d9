"""The versions and wheels of sglang on a package index: asked by pip, as the user has configured
it, and by uv, which lists a release's files."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec
from packaging.utils import parse_wheel_filename

from ..files import run
from ..outcome import Refused

# What pip says, in its warnings, of a package index that it cannot reach.
UNREACHABLE = re.compile(
    r"\[Errno -?\d+\] [^\"')]+|(?:Read|Connection|connect)[^\"'(]* timed out|certificate verify"
    r" failed|Tunnel connection failed: [^\"')]+|[^ ]+ is not a trusted or secure host"
)
PYPI = "https://pypi.org/simple"  # where pip asks without a setting

PIP = (sys.executable, "-m", "pip")
# every file of one release, for any platform and every Python from one on
LIST = (
    *("pip", "compile", "--no-deps", "--no-build", "--universal"),
    *("--format=pylock.toml", "--no-header", "--index-strategy=unsafe-best-match"),
    f"--python={sys.executable}",  # else uv looks for others, which takes seconds
)
STEP = "check `pip config list`, or give a wheel: --from PATH"  # where it lacks one
# of pip -> (of uv, between two values). By environment: every user of the host can read the words
# of a command, and an address may hold a password.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
LINUX = re.compile(r"-any\.whl$|linux[^-]*\.whl$")  # a wheel for any system, or for Linux
TRUE = ("1", "true", "yes", "on")  # as pip has it
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # the oldest that a release may need
PATIENCE = {"UV_HTTP_RETRIES": "1"}  # uv's own three take eight seconds where there is no network


def why(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """Why pip had nothing, in a line, and where it asked: its last line names no cause where the
    index cannot be reached. folder: one to run pip in."""
    said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[-1]
    if broken := UNREACHABLE.search(done.stderr):
        said = f"the package index cannot be reached: {broken[0].strip()}"
    return f"{said}; asked: {asked(settings(folder))}"


def asked(configured: Mapping[str, str]) -> str:
    """The package indexes and folders of wheels of pip's settings, without passwords."""
    places = {"index-url": PYPI, **configured}
    if configured.get("no-index", "").lower() in TRUE:
        places = {"find-links": configured.get("find-links", "nowhere")}
    names = ("index-url", "extra-index-url", "find-links")
    urls = (url for name in names for url in places.get(name, "").split())
    return ", ".join(re.sub("//[^/]*@", "//", url) for url in urls)


def download(
    version: str, file: str, folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Ask pip, as the user has configured it (mirrors, find-links, proxies), for just this wheel of
    sglang. words: more for pip."""
    tag = sorted(parse_wheel_filename(file)[3], key=str)[0]
    python = tag.interpreter[2:] if len(tag.interpreter) > 3 else "3.11"
    chosen = ["--python-version", python, "--platform", tag.platform]
    if tag.abi != "none":
        chosen += ["--implementation", tag.interpreter[:2], "--abi", tag.abi]
    command = [*PIP, "download", "-q", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--progress-bar", "off", *chosen, *words]
    return _pip([*command, "-d", str(folder), f"sglang=={version}"], folder)


def published(folder: Path) -> list[str]:
    """Every version of sglang that the package index pip is configured for has a Linux wheel of,
    for a Python that all pins know.

    folder: an empty one to run pip in. Raises Refused where pip cannot say.
    """
    command = [*PIP, "index", "versions", "sglang", "--json", "--disable-pip-version-check"]
    command += ["--no-input", "--only-binary=:all:", "--python-version", "3.12"]
    command += ["--platform", "manylinux_2_34_x86_64"]
    done = _pip(command, folder)
    try:
        return [str(version) for version in json.loads(done.stdout)["versions"]]
    except (ValueError, KeyError):
        what = why(done, folder)
        step = "check the network and `pip config list`, or give a wheel or checkout: --from PATH"
        raise Refused.of("not-fetched", "the versions of sglang", what, step) from None


def settings(folder: Path) -> dict[str, str]:
    """pip's settings by their names: index-url, find-links."""
    said = _pip([*PIP, "config", "list"], folder).stdout
    configured = re.findall(r"(?m)^(global|download|:env:)\.([\w-]+)=('.*')$", said)
    configured.sort(key=lambda setting: ("global", "download", ":env:").index(setting[0]))
    return {name: ast.literal_eval(value) for _, name, value in configured}


def wheels(version: str, folder: Path, configured: Mapping[str, str]) -> tuple[list[str], str]:
    """(every wheel of the release for Linux, why the package index could not be reached, or "").

    uv lists them, from where pip's settings say. Where the index cannot be reached, the user's own
    folders of wheels are looked through. Raises Refused, with the cause, where none is found.
    """
    is_offline = configured.get("no-index", "").lower() in TRUE
    try:
        return _listed(version, folder, _as_uv(configured), is_offline), ""
    except run.Failed as failure:
        causes = re.findall(r"(?m)^\s*cause: (.*)$", failure.said)  # hints come behind the last
        cause = causes[-1] if causes else str(failure)
        if "No solution found" in failure.said:
            what = f"no wheel of it is available: {cause} Asked: {asked(configured)}"
            raise Refused.of("not-fetched", f"sglang {version}", what, STEP) from None
    broken = f"the package index cannot be reached: {cause}; asked: {asked(configured)}"
    try:
        return _listed(version, folder, _as_uv(configured), True), broken
    except run.Failed:
        raise Refused.of("not-fetched", f"sglang {version}", broken, STEP) from None


def _listed(
    version: str, folder: Path, variables: Mapping[str, str], is_offline: bool
) -> list[str]:
    words = ["--no-index"] if is_offline else []
    requirement, listing = folder / "wanted.in", folder / "pylock.toml"
    requirement.write_text(f"sglang=={version}\n")
    for python in PYTHONS:
        which = [f"--python-version={python}", "-o", str(listing), str(requirement)]
        try:
            run.uv(*LIST, *words, *which, more=PATIENCE | dict(variables))
            break
        except run.Failed as failure:
            if "`requires-python`" not in failure.said or python == PYTHONS[-1]:
                raise
    (package,) = msgspec.toml.decode(listing.read_text())["packages"]
    names = [unquote(wheel["url"].rpartition("/")[2]) for wheel in package["wheels"]]
    return [name for name in names if LINUX.search(name)]


def _as_uv(configured: Mapping[str, str]) -> dict[str, str]:
    """pip's settings as uv's variables."""
    return {
        variable: between.join(configured[name].split())
        for name, (variable, between) in SETTINGS.items()
        if configured.get(name, "").split()
    }


def _pip(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """pip's own five tries take eight seconds where there is no network: two, unless the user says
    otherwise."""
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={"PIP_RETRIES": "1", **os.environ}
    )
