# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "nox>=2026.2,<2027",
#   "uv>=0.9",
#   "pip>=24",
#   "packaging>=25",
#   "unidiff==1.0.1",
#   "rich>=14",
#   "jinja2>=3.1",
#   "msgspec>=0.20",
#   "tomlkit>=0.13",
#   "tomli>=2; python_version < '3.11'",
#   "pytest>=8",
#   "pytest-xdist>=3.8",
#   "hypothesis>=6.120",
# ]
# ///
"""The sessions: each chooses a command of scripts/patchqueue or of lab/.

The words behind a session name releases, or say how:
    scripts/nox apply v0.5.9
    scripts/nox install --help      what else it takes
Several sessions in one call, with the same words, as nox has it:
    scripts/nox -s apply test -- v0.5.9
"""

import logging
import os
import re
import sys

import nox
import nox.command

# scripts/requirements.txt is the list above, locked. After a change to it:
# uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
#     noxfile.py -o scripts/requirements.txt
# In the same way scripts/lint.txt is made of ruff, mypy
# and import-linter, and scripts/coverage.txt of coverage, with -c scripts/requirements.txt.

nox.needs_version = ">=2026.2"
nox.options.sessions = []  # bare `nox` runs nothing; scripts/nox lists the commands
# the sessions share the environment that runs nox: it has all they need
nox.options.default_venv_backend = "none"


# By command: which tool has it, and what bare `scripts/nox` says.
USERS = {
    "apply": ("patchqueue", "Apply the queue to a release, in work/RELEASE/."),
    "unapply": ("patchqueue", "Restore the pristine release in work/RELEASE/."),
    "build": ("patchqueue", "Build a patched wheel of a release."),
    "install": ("patchqueue", "Patch an installed sglang in place."),
    "uninstall": ("patchqueue", "Undo install, to the last byte."),
    "backport": ("patchqueue", "Make a release branch in a checkout of sglang."),
    "patches": ("patchqueue", "Write one patch file, for `git apply`."),
    "gpu": ("evidence", "Prove or time a release on this host's GPU."),
    "sweep": ("evidence", "Find tiles of kernels on this host's GPU."),
}
MAINTAINERS = {
    "check": ("patchqueue", "Lint the queue; replay it on every pin."),
    "refresh": ("patchqueue", "Write edits in work/RELEASE/ back to the queue."),
    "rebase": ("patchqueue", "Carry the queue to another release."),
    "quilt": ("patchqueue", "Run quilt in work/RELEASE/."),
    "pin": ("patchqueue", "Add a release to upstream/pins.toml."),
    "bundle": ("evidence", "Pack a release for a host without an index."),
    "status": ("evidence", "Make the matrix and the benchmarks' page."),
}


HERE = os.path.dirname(os.path.abspath(__file__))
PATH = f"{HERE}/scripts{os.pathsep}{HERE}/lab"  # where the packages of both are


def run_tool(session: nox.Session, tool: str, *words: str) -> None:
    """Run a command line of the project.

    A path behind `--` is relative to the folder that nox was called from: nox itself goes to the
    queue's. Where the tool fails it has said why: nox adds nothing, and ends with its exit code.
    """
    env = {"PYTHONPATH": PATH, "PATCHQUEUE_CALLED_FROM": session.invoked_from}
    try:
        session.run(sys.executable, "-m", tool, *words, env=env, external=True, log=False)
    except nox.command.CommandFailed as failed:
        raise SystemExit(failed.return_code or 1) from None


def _is_news(record: logging.LogRecord) -> bool:
    """Whether nox's line is more than the command that the user typed, again."""
    other = "" if {"-h", "--help"} & {*sys.argv} else r"(?!lint\b)"  # lint says nothing itself
    session = rf"Running session {other}|Session {other}.* was successful"
    return not re.match(
        rf"{session}|Command .* -m (patchqueue|evidence) .* failed", record.getMessage()
    )


logging.getLogger("nox").addFilter(_is_news)


def with_packages(*names: str) -> list[str]:
    """What runs a command with what the tools need, and with the packages of more files of
    scripts/."""
    files = [f"--with-requirements=scripts/{name}.txt" for name in ("requirements", *names)]
    return ["uv", "run", "--quiet", "--no-project", f"--python={sys.executable}", *files]


LINTS = (
    ("ruff", "format", "--check", "--quiet"),
    ("ruff", "check", "--quiet"),
    ("mypy",),
    ("lint-imports",),
)


def linted(session: nox.Session) -> None:
    """Form, types and imports of the project's own Python, as pyproject.toml says."""
    for command in LINTS:
        run = [*with_packages("lint"), *command]
        session.run(*run, env={"PYTHONPATH": PATH}, external=True, silent=True)


def add(name: str, tool: str, said: str, group: str) -> None:
    """Make a session of one command."""

    def run(session: nox.Session) -> None:
        run_tool(session, tool, name, *session.posargs)

    run.__doc__ = said
    nox.session(run, name=name, default=name == "apply", tags=[group])


for name, (tool, said) in USERS.items():
    add(name, tool, said, "users")


@nox.session(tags=["users"])
def test(session: nox.Session) -> None:
    """Test releases without a GPU; and the tool itself."""
    if not session.posargs:
        linted(session)
    run_tool(session, "patchqueue", "test", *session.posargs)


for name, (tool, said) in MAINTAINERS.items():
    add(name, tool, said, "maintainers")


@nox.session(default=False, tags=["maintainers"])
def lint(session: nox.Session) -> None:
    """Check the form, types and imports of the Python."""
    if session.posargs:  # it takes none
        print(f"usage: scripts/nox lint\n\n{lint.__doc__}")
        raise SystemExit(0 if {"-h", "--help"} & {*session.posargs} else 2)
    linted(session)
