"""The queue handed on as commits: a release branch, and pull requests with their tests and texts.

Modules, low to high; none imports from its own floor or a higher one:
cases conventions formatting prtext repository size · additions backport onefile · drafts ·
export · prtest · claims prbody
"""
