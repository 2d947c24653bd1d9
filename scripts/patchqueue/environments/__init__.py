"""Each release's test environment: locked, built without a GPU's libraries, and tests/revision run in it.

Modules, low to high; none imports from its own floor or a higher one:
lock standins · environment · testing
"""
