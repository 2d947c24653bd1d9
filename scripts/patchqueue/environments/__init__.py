"""Each release's test environment: locked, built without a GPU's libraries, and its tests run.

Modules, low to high; none imports from its own floor or a higher one:
lock cuda_stubs · testing
"""
