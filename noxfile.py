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
"""The sessions: each chooses a command of scripts/patchqueue or scripts/evidence.

The words behind a session name releases, or say how:
    scripts/nox apply v0.5.9
    scripts/nox install --help      what else it takes
Several sessions in one call, with the same words, as nox has it:
    scripts/nox -s apply test -- v0.5.9
"""

import logging
import re
import sys

import nox
import nox.command

# scripts/requirements.txt is the list above, locked. After a change to it:
# uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
#     noxfile.py -o scripts/requirements.txt
# In the same way scripts/plots.txt is made of `matplotlib==3.10.7`, and scripts/lint.txt of ruff,
# mypy and import-linter, scripts/mutants.txt of cosmic-ray, and scripts/coverage.txt of coverage,
# with -c scripts/requirements.txt.

nox.needs_version = ">=2026.2"
nox.options.sessions = ["apply", "test"]
# the sessions share the environment that runs nox: it has all they need
nox.options.default_venv_backend = "none"


def called_from(session: nox.Session) -> dict[str, str]:
    """What a path behind `--` is relative to (scripts/patchqueue/commands/paths.py): nox itself
    goes to the queue's folder."""
    return {"PATCHQUEUE_CALLED_FROM": session.invoked_from}


def patchqueue(session: nox.Session, command: str, *words: str) -> None:
    """Run the tool."""
    run_tool(session, "patchqueue", command, *words)


def evidence(session: nox.Session, command: str, *words: str) -> None:
    """Run what proves releases on GPUs, and tells what was found."""
    run_tool(session, "evidence", command, *words)


def run_tool(session: nox.Session, tool: str, *words: str) -> None:
    """Run a command line. Where it fails it has said why: nox adds nothing, and ends with its exit
    code."""
    run = [sys.executable, "-m", tool, *words]
    try:
        session.run(
            *run, env={"PYTHONPATH": "scripts", **called_from(session)}, external=True, log=False
        )
    except nox.command.CommandFailed as failed:
        raise SystemExit(failed.return_code or 1) from None


def _is_news(record: logging.LogRecord) -> bool:
    """Whether nox's line is more than the tool's command line again."""
    return not re.match(
        r"Command .* -m (patchqueue|evidence) .* failed with exit code", record.getMessage()
    )


logging.getLogger("nox").addFilter(_is_news)


def with_matplotlib(session: nox.Session, command: str, *words: str) -> None:
    """The same where plots are drawn: nothing else needs matplotlib, so it has an environment of
    its own."""
    python = [
        f"--python={sys.executable}",
        "--with-requirements=scripts/requirements.txt",
        "--with-requirements=scripts/plots.txt",
    ]
    session.run(
        "uv",
        "run",
        "--no-project",
        *python,
        "python",
        "-m",
        "evidence",
        command,
        *words,
        env={"PYTHONPATH": "scripts", **called_from(session)},
        external=True,
    )


LINTS = (
    ("ruff", "format", "--check", "--quiet"),
    ("ruff", "check", "--quiet"),
    ("mypy",),
    ("lint-imports",),
    ("python", "scripts/imports.py", "--check"),
)


def linted(session: nox.Session) -> None:
    """Form, types and imports of the project's own Python, as pyproject.toml says."""
    for command in LINTS:
        with_tools(session, ["lint"], *command, silent=True)


def with_tools(session: nox.Session, more: list[str], *command: str, silent: bool = False) -> None:
    """Run a command with what the tool needs, and with the packages of more files of scripts/."""
    files = [f"--with-requirements=scripts/{name}.txt" for name in ("requirements", *more)]
    run = ["uv", "run", "--quiet", "--no-project", f"--python={sys.executable}", *files]
    session.run(*run, *command, env={"PYTHONPATH": "scripts"}, external=True, silent=silent)


@nox.session(tags=["users"])
def apply(session: nox.Session) -> None:
    """Lay the queue on a release, in work/TAG/."""
    patchqueue(session, "apply", *session.posargs)


@nox.session(default=False, tags=["users"])
def unapply(session: nox.Session) -> None:
    """Take it off again: the pristine release."""
    patchqueue(session, "unapply", *session.posargs)


@nox.session(default=False, tags=["users"])
def build(session: nox.Session) -> None:
    """Make a release's wheel with the queue on it."""
    patchqueue(session, "build", *session.posargs)


@nox.session(default=False, tags=["users"])
def install(session: nox.Session) -> None:
    """Patch an installed sglang, in place."""
    patchqueue(session, "install", *session.posargs)


@nox.session(default=False, tags=["users"])
def uninstall(session: nox.Session) -> None:
    """Take that back, to the last byte."""
    patchqueue(session, "uninstall", *session.posargs)


@nox.session(default=False, tags=["users"])
def backport(session: nox.Session) -> None:
    """Make a release branch in a checkout of sglang."""
    patchqueue(session, "backport", *session.posargs)


@nox.session(tags=["users"])
def test(session: nox.Session) -> None:
    """Test releases without a GPU; and the tool itself."""
    if not session.posargs:
        linted(session)
    patchqueue(session, "test", *session.posargs)


@nox.session(default=False, tags=["users"])
def gpu(session: nox.Session) -> None:
    """Prove a release on this host's GPU."""
    evidence(session, "gpu", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def lint(session: nox.Session) -> None:
    """Check the form, types and imports of the Python."""
    linted(session)


@nox.session(default=False, tags=["maintainers"])
def imports(session: nox.Session) -> None:
    """Draw the packages' imports in CONTRIBUTING.md."""
    with_tools(session, ["lint"], "python", "scripts/imports.py", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def mutants(session: nox.Session) -> None:
    """Mutate the checks; see what the tests kill."""
    with_tools(session, ["mutants"], "python", "scripts/mutation.py", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def coverage(session: nox.Session) -> None:
    """Count the tool's lines that its tests run."""
    tests = ["coverage", "run", "-m", "pytest", "tests/queue", "-q", "-n", "auto"]
    for command in (tests, ["coverage", "combine", "-q"], ["coverage", "report"]):
        with_tools(session, ["plots", "coverage"], *command)


@nox.session(default=False, tags=["maintainers"])
def check(session: nox.Session) -> None:
    """Lint the queue; replay it on every pin."""
    patchqueue(session, "check", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def refresh(session: nox.Session) -> None:
    """Write edits in work/TAG/ back to the queue."""
    patchqueue(session, "refresh", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def new(session: nox.Session) -> None:
    """Start a patch on top of work/TAG/."""
    patchqueue(session, "new", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def rebase(session: nox.Session) -> None:
    """Carry the queue to another release."""
    patchqueue(session, "rebase", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def watch(session: nox.Session) -> None:
    """Say what the queue does on new releases."""
    patchqueue(session, "watch", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def quilt(session: nox.Session) -> None:
    """Run quilt in work/TAG/."""
    patchqueue(session, "quilt", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def pin(session: nox.Session) -> None:
    """Add a release to upstream/pins.toml."""
    patchqueue(session, "pin", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def lock(session: nox.Session) -> None:
    """Resolve a release's test environment."""
    patchqueue(session, "lock", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def matrix(session: nox.Session) -> None:
    """Print the proofs a fleet has to run."""
    evidence(session, "matrix", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def export(session: nox.Session) -> None:
    """Make pull requests in a checkout."""
    evidence(session, "export", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def bundle(session: nox.Session) -> None:
    """Pack a release for a host without an index."""
    patchqueue(session, "bundle", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def sweep(session: nox.Session) -> None:
    """Find tiles for Mamba2's prefill kernels."""
    evidence(session, "sweep", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def bench(session: nox.Session) -> None:
    """Time a release on this host's GPU."""
    run = with_matplotlib if "--page" in session.posargs else evidence
    run(session, "bench", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def status(session: nox.Session) -> None:
    """Make the matrix and the lists of patches."""
    evidence(session, "status", *session.posargs)


@nox.session(default=False, tags=["maintainers"])
def figures(session: nox.Session) -> None:
    """Measure apply, check and install."""
    run = with_matplotlib if "--page" in session.posargs else evidence
    run(session, "figures", *session.posargs)
