"""What a sitecustomize.py below this folder does to a release, without a changed file: it loads
this one by its path, since nothing of tests/gpu is importable that early.

watch/sitecustomize.py has its own: it belongs to the rules that evidence names (harness.json).
"""

import importlib.abc
import importlib.util
import pathlib
import sys


class AfterImport(importlib.abc.MetaPathFinder):
    """Runs `change` with each module of these names, once it has been imported."""

    def __init__(self, names, change):
        self.names, self.change = set(names), change

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        self.names.remove(name)  # the search below ends at this finder otherwise
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


def after_import(names, change):
    sys.meta_path.insert(0, AfterImport(names, change))


def next_sitecustomize(here):
    """Python runs the first one on its path alone; here: that one's folder."""
    folders = [pathlib.Path(folder or ".").resolve() for folder in sys.path]
    for folder in folders[folders.index(here) + 1 :] if here in folders else []:
        file = folder / "sitecustomize.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("next_sitecustomize", file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return
