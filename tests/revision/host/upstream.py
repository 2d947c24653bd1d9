"""pytest for tests in upstream's own shape: `python -m host.upstream [words for pytest]`, on a host
that lacks what upstream's CI has."""

import importlib.util
import os
import sys
import types

import pytest

from . import standin_packages

NO_GPU = "9"  # sglang.test.test_utils takes its ports from the first digit, and "" has none
# sglang.test.test_utils imports its benchmarks, and these import it
CI_ONLY = {"datasets": ("load_dataset",)}


def install():
    """Stand-ins for the packages that are not there; their functions refuse to run."""
    standin_packages.install()
    for name, functions in CI_ONLY.items():
        if importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            vars(module).update(dict.fromkeys(functions, _cannot_run))
            sys.modules[name] = module


def _cannot_run(*_, **__):
    raise NotImplementedError("this package is not installed here")


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = NO_GPU
    install()
    sys.exit(pytest.main(sys.argv[1:]))
