"""The queue handed on: a release branch, pull requests with tests and texts, a release's files.

Modules, low to high; none imports from its own floor or a higher one:
repository · backport · pull_requests release
"""
