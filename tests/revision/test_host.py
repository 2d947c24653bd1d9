"""The host itself: what the other tests stand on is real, and is the tree under test."""

import pytest
from host import compiled, interpreted, late, sample_kernels


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_are_compiled_for_gpus_that_are_not_there(capability):
    signature = {"x_ptr": "*bf16", "y_ptr": "*bf16"}
    small, large = (
        compiled.compiled(
            sample_kernels.centre, signature, {"SIZE": size}, {"num_warps": 1}, capability
        )
        for size in (256, 16384)
    )
    assert small.spilled == 0 and 8 < small.registers < 64 and small.shared == 0
    assert large.spilled > 0
    assert "ld.global.v4" in small.ptx
    unaligned = compiled.compiled(
        sample_kernels.centre, signature, {"SIZE": 256}, {"num_warps": 1}, capability, aligned=[]
    )
    assert "ld.global.v4" not in unaligned.ptx


def test_a_module_that_cannot_run_interpreted_says_why():
    """And the next one runs all the same."""
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        interpreted.run("host.references.nothing", {})
    assert interpreted.run("host.references.compare_ssd", {}) == {}


def test_a_module_that_the_release_lacks_is_an_error_where_it_is_used():
    with late.modules():
        from sglang.srt import of_no_release
    with pytest.raises(ModuleNotFoundError, match="of_no_release"):
        of_no_release.anything  # noqa: B018
    unknown = "sglang.of_no_release.environ"
    assert not late.has(unknown)
    with pytest.raises(ImportError, match=f"none of {unknown}, nothing"):
        late.first(unknown, "nothing")
