"""Which prefill kernels of a gated delta net go with a prefix cache that keeps states."""

from types import SimpleNamespace

import pytest
from host import late

with late.modules():
    from sglang.srt import server_args
    from sglang.srt.layers.attention.linear import gdn_backend, utils
    from sglang.srt.layers.attention.linear.kernels import gdn_flashinfer

pytestmark = pytest.mark.revision(">=0.5.10,<0.5.17")


def dispatch(monkeypatch, kernel, keeps):
    """The release's choice of kernels, where its prefill kernel is named so; keeps: whether the
    prefix cache keeps states of a prefill's chunks."""
    monkeypatch.setattr(gdn_backend, "is_cuda", lambda: True)
    monkeypatch.setattr(
        gdn_flashinfer, "FlashInferGDNKernel", lambda: SimpleNamespace(supports_target_verify=False)
    )
    arguments = SimpleNamespace(enable_mamba_extra_buffer=lambda: keeps)
    monkeypatch.setattr(server_args, "get_global_server_args", lambda: arguments)
    return gdn_backend.GDNKernelDispatcher(
        utils.LinearAttnKernelBackend("triton"), utils.LinearAttnKernelBackend(kernel)
    )


def test_a_kernel_that_returns_no_states_is_refused_where_states_are_kept(monkeypatch):
    with pytest.raises(ValueError, match="--linear-attn-prefill-backend triton"):
        dispatch(monkeypatch, "flashinfer", keeps=True)


@pytest.mark.parametrize(("kernel", "keeps"), [("flashinfer", False), ("triton", True)])
def test_others_go_on(monkeypatch, kernel, keeps):
    assert dispatch(monkeypatch, kernel, keeps).extend_kernel is not None
