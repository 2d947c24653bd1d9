"""A release's wheel with the queue on it.

Modules, low to high; none imports from its own floor or a higher one:
notice · build
"""
