"""The queue handed on: to another release, as a branch or one patch file, as pull requests, and as
a release of its own.

Modules, low to high; none imports from its own floor or a higher one:
repository · backport forecast · pull_requests rebase
"""
