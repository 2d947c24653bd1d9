"""The table of docs/graphs.md: what a breakable graph does with each model's layers with recurrent
states, under each setting, in the reasons that the code gives on this release."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from host import late, process
from test_captured_gdn import net

with late.modules():
    from sglang.srt.layers.attention.linear import kda_backend
    from sglang.srt.models import falcon_h1, granitemoehybrid
    from sglang.srt.prefill_graph.breakable import arguments, runner
    from sglang.srt.prefill_graph.captured import extend_hook, layers, own_runner
    from sglang.srt.prefill_graph.kernels import mamba2_scan, tiles
    from sglang.srt.prefill_graph.model import layers as model_layers

pytestmark = [
    pytest.mark.revision(">=0.5.9,<0.5.24"),
    pytest.mark.patch("breakable/break-beside-attention"),
]

PAGE = Path(__file__).parents[2] / "docs/graphs.md"
SETTINGS = {  # a column: what is set of the server's arguments
    "default": {},
    "`extra_buffer`": dict(mamba_radix_cache_strategy="extra_buffer"),
    "drafts": dict(speculative_algorithm="EAGLE"),
    "DP attention": dict(enable_dp_attention=True),
    "HiCache": dict(enable_hierarchical_cache=True),
}
MODELS = "NemotronH", "Qwen3-Next", "Falcon-H1", "Granite 4", "Kimi-Linear"
# Where nothing gives a reason in words:
OUTSIDE = "the mixer runs outside of every graph break"
UPSTREAM = "upstream's hook captures KDA"


def owner_of(model):
    """What a layer's state is known by; `layer_id` 0, as the release's classes have it."""
    if model in ("Qwen3-Next", "Kimi-Linear"):
        return net()
    mixer = type("MambaMixer2", (torch.nn.Module,), {})()
    mixer.activation, mixer.n_groups, mixer.tp_size = "silu", 8, 1
    mixer.conv1d = SimpleNamespace(weight=torch.zeros(96, 1, 4))
    kind = {
        "NemotronH": type("NemotronHMambaDecoderLayer", (torch.nn.Module,), {}),
        "Falcon-H1": falcon_h1.FalconH1HybridAttentionDecoderLayer,
        "Granite 4": granitemoehybrid.GraniteMoeHybridMambaDecoderLayer,
    }[model]
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    setattr(layer, "mixer" if model == "NemotronH" else "mamba", mixer)
    layer.layer_id = 0
    return layer


def server(model, changes, monkeypatch):
    """A ModelRunner with one such layer, as far as it is looked at, on a GPU of Hopper's."""
    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER)
    for module, name in ((tiles, "own"), (mamba2_scan, "known_shape")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    monkeypatch.setattr(layers.ops, "mamba_cache_chunk_size", lambda: 256)
    keeps = "mamba_radix_cache_strategy" in changes
    monkeypatch.setattr(layers.model_runner, "tracks_states", lambda runner: keeps)
    for name in (layers.SWITCH, "SGLANG_MAMBA2_SCAN"):
        monkeypatch.delenv(name, raising=False)
    heads = (16, 64, 128) if model not in ("Qwen3-Next", "Kimi-Linear") else (4, 16, 16)
    cache = SimpleNamespace(conv=[torch.zeros(3, 128, 3)], temporal=torch.zeros(3, *heads))
    kind = "KDAAttnBackend" if model == "Kimi-Linear" else "GDNAttnBackend"
    kernels = SimpleNamespace(extend_kernel=type("TritonGDNKernel", (), {})())
    linear = type(kind, (), {"kernel_dispatcher": kernels, "enable_mis": False})()
    owner = owner_of(model)
    breaks = [object() if hasattr(owner, "mamba") else owner]
    return SimpleNamespace(
        model=torch.nn.ModuleList([owner]),
        attention_layers=breaks,
        req_to_token_pool=SimpleNamespace(mamba2_layer_cache=lambda layer_id: cache),
        attn_backend=SimpleNamespace(linear_attn_backend=linear, full_attn_backend=None),
        dtype=torch.bfloat16,
        device="cpu",
        tp_rank=0,
        use_mla_backend=model == "Kimi-Linear",
        server_args=SimpleNamespace(**vars(process.default_server_args()) | changes),
    )


def why_not(model, changes, revision, monkeypatch):
    """(what happens, reason) where the layer is not captured, else None. What happens: the server
    refuses the setting ("refused"), the model runs without the graph ("eager"), or "break"."""
    made = server(model, changes, monkeypatch)
    [owner] = made.model
    if revision.micro < 14 and (against := arguments._against(made.server_args)):
        return "refused", against[0].partition(": ")[2]
    if model == "Qwen3-Next" and revision.micro >= 19:  # Hopper's default kernel
        monkeypatch.setattr(layers.delta_rule, "flashinfer_prefill", lambda backend: True)
    if model == "Kimi-Linear" and revision.micro < 14:
        return "eager", runner.refuse(made)
    if model == "Kimi-Linear" and hasattr(
        kda_backend.KDAAttnBackend, "supports_prefill_graph_extend"
    ):
        return "upstream", UPSTREAM
    if hasattr(owner, "mamba") and not model_layers.breaks_at_mixer(owner):
        assert model_layers.outside_breaks([owner]), "captured, it would go on with old states"
        return "eager", OUTSIDE
    found = of(made, revision)
    if isinstance(found, layers.Captured):
        ranks = runner._not_handed_on(made) if revision.micro < 14 else None
        return ranks and ("break", ranks)
    return "break", found


def of(made, revision):
    """What the release's way of capturing finds: a Captured, a reason, or None."""
    if revision.micro < 14:
        return layers.of(made)
    if revision.micro < 22:
        kind = type(own_runner.BACKEND, (), {})
        settled = dict(backend=kind(), use_captured_attn_metadata=False)
        return own_runner.of(SimpleNamespace(model_runner=made, **settled))
    linear = made.attn_backend.linear_attn_backend
    linear._model_runner = made
    return extend_hook.of(linear)


def mixed_chunk():
    """What becomes of a batch that also decodes where layers are captured."""
    mode = SimpleNamespace(is_mixed=lambda: True, is_target_verify=lambda: False)
    batch = SimpleNamespace(forward_mode=mode, batch_size=1)
    reason = layers.why_not(batch, SimpleNamespace(step=64))
    return ("eager", reason) if reason else "captured"


def table(page):
    """The rows of the page's table: (model, first and last release, cells)."""
    for line in page.splitlines():
        cells = line.strip("|").split("|")
        if len(cells) > 2 and (ends := re.fullmatch(r"0\.5\.(\d+)–0\.5\.(\d+)", cells[1])):
            yield cells[0], *map(int, ends.groups()), cells[2:]


def wanted(model, revision, monkeypatch):
    """The cells of a model on this release, each (what happens, reason) or "captured"."""
    found = []
    for changes in SETTINGS.values():
        with monkeypatch.context() as patch:
            found.append(why_not(model, changes, revision, patch) or "captured")
    if found[0] == "captured":
        return [*found, mixed_chunk()]
    assert all(cell[0] in (found[0][0], "refused") for cell in found), found
    return found[:1]


@pytest.mark.parametrize("model", MODELS)
def test_the_table_says_what_the_code_does(model, revision, monkeypatch):
    page = PAGE.read_text(encoding="utf-8")
    reasons = {text: number for number, text in re.findall(r"^(\d+)\. (.+)$", page, re.MULTILINE)}
    [cells] = [
        cells
        for name, first, last, cells in table(page)
        if model in name and first <= revision.micro <= last
    ]
    found = [
        cell if isinstance(cell, str) else f"{cell[0]} {reasons.get(cell[1], cell[1])}"
        for cell in wanted(model, revision, monkeypatch)
    ]
    if model in ("NemotronH", "Falcon-H1") and revision.micro < 13:
        found[1] = cells[1]  # a sentence of the page: the release has no extra_buffer for them
    assert cells == found


def test_every_column_and_every_reason_is_of_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert "|".join(["|model|releases", *SETTINGS, "mixed chunks|"]) in page
    cells = " ".join(cell for *_, cells in table(page) for cell in cells)
    used = set(re.findall(r"\d+", cells))
    assert used == set(re.findall(r"^(\d+)\. ", page, re.MULTILINE))
