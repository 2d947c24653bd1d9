"""The Python bodies of a release's custom ops, which register a kernel for GPU tensors only."""

import importlib
import importlib.util


def load_undecorated(name, monkeypatch):
    """The module `name` once more, apart from sglang's own: its decorators register nothing."""
    original = importlib.import_module(name)
    compilation = importlib.import_module("sglang.srt.compilation.compilation_config")
    if hasattr(compilation, "SPLIT_OPS"):  # from 0.5.8, where decorators register ops
        custom_op = importlib.import_module("sglang.srt.utils.custom_op")
        monkeypatch.setattr(custom_op, "register_custom_op", lambda **_: lambda body: body)
        monkeypatch.setattr(compilation, "SPLIT_OPS", [])
    module = importlib.util.module_from_spec(original.__spec__)
    original.__spec__.loader.exec_module(module)
    return module
