# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "nox>=2026.2,<2027",
#   "uv>=0.9",
#   "pip>=24",
#   "packaging>=25",
#   "unidiff==1.0.1",
#   "rich>=14",
#   "tomlkit>=0.13",
#   "tomli>=2; python_version < '3.11'",
#   "pytest>=8",
#   "hypothesis>=6.120",
# ]
# ///
"""The project's sessions. Each chooses what to run; the work is done by scripts/patchqueue.

Words after `--` name revisions (v0.5.9) and go to every session of the call: `nox -s apply test -- v0.5.9`.
"""

import sys

import nox

nox.needs_version = ">=2026.2"
nox.options.sessions = ["apply", "test"]
nox.options.default_venv_backend = "none"  # the sessions share the environment that runs nox: it has all they need


def patchqueue(session: nox.Session, command: str, *words: str) -> None:
    session.run(sys.executable, "-m", "patchqueue", command, *words, env={"PYTHONPATH": "scripts"}, external=True)


@nox.session
def apply(session: nox.Session) -> None:
    """Lay the queue on a release, in work/TAG/ (default: v0.5.9; --all, --from PATH|URL, --discard)."""
    patchqueue(session, "apply", *session.posargs)


@nox.session(default=False)
def unapply(session: nox.Session) -> None:
    """Take it off again: back to the pristine release."""
    patchqueue(session, "unapply", *session.posargs)


@nox.session(default=False)
def check(session: nox.Session) -> None:
    """Lint the queue and replay it in memory on every pin."""
    patchqueue(session, "check", *session.posargs)
