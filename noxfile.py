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

Words after `--` name revisions and go to every session of the call:
    nox -s apply test -- v0.5.9
    nox -s check -- --help        what else a session takes
"""

import sys

import nox

# scripts/requirements.txt is the list above, locked. After a change to it:
# uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate noxfile.py -o scripts/requirements.txt

nox.needs_version = ">=2026.2"
nox.options.sessions = ["apply", "test"]
nox.options.default_venv_backend = "none"  # the sessions share the environment that runs nox: it has all they need


def called_from(session: nox.Session) -> dict[str, str]:
    """What a path behind `--` is relative to (scripts/patchqueue/commands/paths.py): nox itself goes to the queue's folder."""
    return {"PATCHQUEUE_CALLED_FROM": session.invoked_from}


def patchqueue(session: nox.Session, command: str, *words: str) -> None:
    session.run(sys.executable, "-m", "patchqueue", command, *words, env={"PYTHONPATH": "scripts", **called_from(session)}, external=True)


def with_matplotlib(session: nox.Session, command: str, *words: str) -> None:
    """The same where plots are drawn: nothing else needs matplotlib, so it has an environment of its own."""
    python = [f"--python={sys.executable}", "--with-requirements=scripts/requirements.txt", "--with=matplotlib==3.10.7"]
    session.run("uv", "run", "--no-project", *python, "python", "-m", "patchqueue", command, *words, env={"PYTHONPATH": "scripts", **called_from(session)}, external=True)


@nox.session
def apply(session: nox.Session) -> None:
    """Lay the queue on a release, in work/TAG/."""
    patchqueue(session, "apply", *session.posargs)


@nox.session(default=False)
def unapply(session: nox.Session) -> None:
    """Take it off again, back to the pristine release."""
    patchqueue(session, "unapply", *session.posargs)


@nox.session(default=False)
def check(session: nox.Session) -> None:
    """Lint the queue and replay it in memory, on every pin."""
    patchqueue(session, "check", *session.posargs)


@nox.session
def test(session: nox.Session) -> None:
    """Prove it without a GPU: check, tests/queue, tests/revision."""
    patchqueue(session, "test", "--plan", *session.posargs)  # a word that is wrong is said at once
    if {"-h", "--help"} & set(session.posargs):
        return
    patchqueue(session, "check")
    session.run(sys.executable, "-m", "pytest", "tests/queue", external=True)
    patchqueue(session, "test", *session.posargs)


@nox.session(default=False)
def refresh(session: nox.Session) -> None:
    """Write edits in work/TAG/ back to patches/, series and overlay/."""
    patchqueue(session, "refresh", *session.posargs)


@nox.session(default=False)
def new(session: nox.Session) -> None:
    """Start a patch on top of work/TAG/: nox -s new -- v0.5.9 topic/verb-object."""
    patchqueue(session, "new", *session.posargs)


@nox.session(default=False)
def rebase(session: nox.Session) -> None:
    """Say what the queue does on another release, and carry it there: nox -s rebase -- 0.5.24 [--continue]."""
    patchqueue(session, "rebase", *session.posargs)


@nox.session(default=False)
def watch(session: nox.Session) -> None:
    """Say which releases are newer than the newest pin, and what the queue would do there."""
    patchqueue(session, "watch", *session.posargs)


@nox.session(default=False)
def quilt(session: nox.Session) -> None:
    """Run quilt in work/TAG/: nox -s quilt -- v0.5.9 pop -a."""
    patchqueue(session, "quilt", *session.posargs)


@nox.session(default=False)
def pin(session: nox.Session) -> None:
    """Add a release: nox -s pin -- 0.5.24."""
    patchqueue(session, "pin", *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve a release's test environment as of its pinned day."""
    patchqueue(session, "lock", *session.posargs)


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Print which proofs a fleet has to run, release by GPU by model, as JSON."""
    patchqueue(session, "matrix", *session.posargs)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Repack a release's official wheel with the queue on it: dist/*.whl."""
    patchqueue(session, "build", *session.posargs)


@nox.session(default=False)
def backport(session: nox.Session) -> None:
    """Make a release branch in a checkout of sglang: nox -s backport -- --onto REPO BRANCH."""
    patchqueue(session, "backport", *session.posargs)


@nox.session(default=False)
def export(session: nox.Session) -> None:
    """Make pull requests in a checkout of sglang: nox -s export -- --onto REPO [TOPIC]."""
    patchqueue(session, "export", *session.posargs)


@nox.session(default=False)
def install(session: nox.Session) -> None:
    """Patch an installed sglang in place: nox -s install -- --site-packages DIR."""
    patchqueue(session, "install", *session.posargs)


@nox.session(default=False)
def uninstall(session: nox.Session) -> None:
    """Take that back, to the last byte: nox -s uninstall -- --site-packages DIR."""
    patchqueue(session, "uninstall", *session.posargs)


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Pack a patched release for a GPU host without a package index."""
    patchqueue(session, "bundle", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Prove a release on this host's GPU: nox -s gpu -- v0.5.9 [--here --site FOLDER]."""
    patchqueue(session, "gpu", *session.posargs)


@nox.session(default=False)
def sweep(session: nox.Session) -> None:
    """Find tiles for Mamba2's prefill kernels on this host's GPU: nox -s sweep -- v0.5.12.post1 [--here --site FOLDER]."""
    patchqueue(session, "sweep", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time a release on this host's GPU; --page makes docs/bench.md and its plot."""
    if "--page" not in session.posargs:
        patchqueue(session, "bench", *session.posargs)
        return
    with_matplotlib(session, "bench", *session.posargs)


@nox.session(default=False)
def status(session: nox.Session) -> None:
    """Make the support matrix in docs/proof.md, and the patches by release in docs/patches.md; --merge DIR gathers a fleet's results first."""
    patchqueue(session, "status", *session.posargs)


@nox.session(default=False)
def figures(session: nox.Session) -> None:
    """Measure apply, check and install: times, kills, two at once, bad input; --page makes docs/figures.md and its plots."""
    if "--page" in session.posargs:
        with_matplotlib(session, "figures", *session.posargs)
        return
    session.run(sys.executable, "scripts/figures/queue_figures.py", *session.posargs, env=called_from(session), external=True)
