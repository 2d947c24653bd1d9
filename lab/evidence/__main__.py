from patchqueue.__main__ import run

raise SystemExit(run("evidence.commands"))
