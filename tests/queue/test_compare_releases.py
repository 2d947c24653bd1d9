"""scripts/compare_releases.py: which functions of two releases count as changed."""

import ast

import compare_releases
import pytest

BEFORE = '''
class Pool:
    def clear(self):
        """Empty all slots."""
        self.free = []

if True:
    def track(step): return step // 64
'''


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ('"""Empty all slots."""', "# another text", set()),
        ("return step // 64", "return (\n        step // 64)", set()),
        ("self.free = []", "self.free = [1]", {"Pool.clear"}),
        ("step // 64", "step // 128", {"track"}),
    ],
)
def test_a_function_has_changed_where_its_code_has(before, after, changed):
    old, new = (
        dict(compare_releases.functions_in(ast.parse(text)))
        for text in (BEFORE, BEFORE.replace(before, after))
    )
    assert old.keys() == new.keys() == {"Pool.clear", "track"}
    assert {name for name in old if old[name] != new[name]} == changed


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("srt/models/qwen3_5_mtp.py", "models"),
        ("kernels/ops/attention/fla/chunk.py", "linear"),
        ("srt/mem_cache/mamba_radix_cache.py", "radix"),
        ("srt/managers/scheduler_components/batch_result_processor.py", "scheduler"),
        ("srt/models/llama.py", None),
    ],
)
def test_a_file_belongs_to_the_first_area_that_has_it(path, area):
    assert compare_releases.area_of(path) == area
