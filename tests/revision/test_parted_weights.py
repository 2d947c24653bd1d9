"""Updates whose buckets part a joined projection's halves, through each release's own loaders."""

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from host import late

with late.modules():
    from sglang.srt.model_executor import model_runner
    from sglang.srt.prefill_graph.model import parted_weights

pytestmark = pytest.mark.revision(">=0.5.5")

HALVES = "q_a_proj", "kv_a_proj_with_mqa"
Q_ROWS, KV_ROWS, WIDTH = 3, 2, 8
# by name: module, class, what its checkpoints call an attention layer
LOADERS = {
    "DeepSeek": ("deepseek_v2", "DeepseekV2ForCausalLM", "self_attn"),
    "GLM-4.7-Flash": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "self_attn"),
    "Ring and Ling": ("bailing_moe_linear", "BailingMoELinearForCausalLM", "attention"),
    "LongCat": ("longcat_flash", "LongcatFlashForCausalLM", "self_attn.0"),
}


def small(name, attention):
    """A model of the class `name` with one joined projection, which its own loader fills."""
    module = importlib.import_module(f"sglang.srt.models.{LOADERS[name][0]}")
    config = SimpleNamespace(
        n_routed_experts=1,
        num_experts=1,
        q_lora_rank=Q_ROWS,
        num_hidden_layers=1,
        num_layers=1,
        num_nextn_predict_layers=0,
        tie_word_embeddings=False,
        n_shared_experts=0,
        num_attention_heads=1,
        architectures=None,
    )
    holder = torch.nn.Module()
    *path, last = f"model.layers.0.{attention}.fused_qkv_a_proj_with_mqa".split(".")
    place = holder
    for step in path:
        place.add_module(step, torch.nn.Module())
        place = getattr(place, step)
    joined = torch.nn.Module()
    joined.weight = torch.nn.Parameter(torch.zeros(Q_ROWS + KV_ROWS, WIDTH), requires_grad=False)
    place.add_module(last, joined)

    class Small(getattr(module, LOADERS[name][1])):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.model = holder.model
            self.model.start_layer, self.model.end_layer = 0, 1
            self.config, self.quant_config, self.num_fused_shared_experts = config, None, 0
            self.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
            self.use_ngram_embedding = False

        def post_load_weights(self, *words, **named):
            pass

        def _maybe_quant_weights_to_fp8_ue8m0(self, weights, *words, **named):
            return weights

    made = Small()
    return made, joined.weight


def halves(attention, seed=0):
    """Both halves, as a checkpoint names them."""
    source = torch.Generator().manual_seed(seed)
    return {
        part: (
            f"model.layers.0.{attention}.{part}.weight",
            torch.randn(rows, WIDTH, generator=source),
        )
        for part, rows in zip(HALVES, (Q_ROWS, KV_ROWS))
    }


@pytest.fixture(params=LOADERS)
def loader(request):
    try:
        importlib.import_module(f"sglang.srt.models.{LOADERS[request.param][0]}")
    except ModuleNotFoundError as error:
        assert error.name.startswith("sglang.srt.models.")
        pytest.skip("the release has no such model")
    return request.param


@pytest.mark.parametrize("order", [HALVES, HALVES[::-1]])
@pytest.mark.parametrize("buckets", [1, 2])
def test_both_halves_arrive(loader, order, buckets):
    attention = LOADERS[loader][2]
    model, joined = small(loader, attention)
    parted_weights.complete(model)
    named = halves(attention)
    parts = [named[part] for part in order]
    for bucket in [parts] if buckets == 1 else [parts[:1], parts[1:]]:
        model.load_weights(bucket)
    assert torch.equal(joined, torch.cat([named[part][1] for part in HALVES]))


def test_each_update_of_one_half_is_written(loader):
    """Updates of what changed alone, in an order that pairs no two of one update."""
    attention = LOADERS[loader][2]
    model, joined = small(loader, attention)
    parted_weights.complete(model)
    model.load_weights(list(halves(attention).values()))
    for seed, part in enumerate([*HALVES, *HALVES[::-1], HALVES[0]], 1):
        before = joined.clone()
        name, half = halves(attention, seed)[part]
        model.load_weights([(name, half)])
        wanted = (half, before[Q_ROWS:]) if part == HALVES[0] else (before[:Q_ROWS], half)
        assert torch.equal(joined, torch.cat(wanted))


class Sparse(torch.nn.Module):
    """A model with an indexer, whose loader drops what has no second part in the call."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.loaded = names, []

    def named_parameters(self):
        return [(name, torch.zeros(5, WIDTH)) for name in self.names]

    def load_weights(self, weights):
        self.loaded.append([name for name, _ in weights])


INDEXER = "model.layers.0.self_attn.indexer.wk"


def fp8(rows=4):
    return torch.zeros(rows, WIDTH, dtype=torch.float8_e4m3fn)


def test_an_indexers_weight_and_scale_meet_across_calls():
    model = Sparse("model.layers.0.self_attn.indexer.wk_weights_proj.weight")
    parted_weights.complete(model)
    weight, scale = (f"{INDEXER}.weight", fp8()), (f"{INDEXER}.weight_scale_inv", torch.ones(1, 1))
    other = "model.norm.weight", torch.ones(WIDTH)
    for call in ([weight, other], [other, scale], [weight], [scale, weight], [weight]):
        model.load_weights(iter(call))
    assert model.loaded == [
        [weight[0], other[0]],
        [other[0], scale[0], weight[0]],  # the kept weight
        [weight[0], scale[0]],  # a newer weight beside the kept scale
        [scale[0], weight[0]],
        [weight[0]],  # both of one call leave nothing kept
    ]
    model.load_weights([(f"{INDEXER}.weight", torch.zeros(4, WIDTH, dtype=torch.bfloat16))])
    assert model.loaded[-1] == [f"{INDEXER}.weight"]


def test_what_is_kept_does_not_hold_on_to_a_bucket():
    bucket, kept = fp8(64), {}
    list(parted_weights.completed(Sparse(), [(f"{INDEXER}.weight", bucket[:4])], kept))
    ((_, held),) = kept[f"{INDEXER}."].values()
    assert held.untyped_storage().nbytes() == 4 * WIDTH


def completed(*names, half=None, part="q_a_proj", layer="model.layers.0."):
    """The names that a call of one half is completed to, in a model with parameters `names`."""
    half = torch.ones(Q_ROWS, WIDTH) if half is None else half
    given = [(f"{layer}self_attn.{part}.weight", half)]
    return [name for name, _ in parted_weights.completed(Sparse(*names), given, {})][1:]


def test_names_below_another_prefix_are_found():
    joined = "self_attn.fused_qkv_a_proj_with_mqa.weight"
    other = "self_attn.kv_a_proj_with_mqa.weight"
    assert completed(f"language_model.model.layers.0.{joined}") == [f"model.layers.0.{other}"]
    assert completed(f"model.decoder.{joined}", layer="model.layers.61.") == [
        f"model.layers.61.{other}"
    ]
    assert completed(f"model.layers.10.{joined}") == []  # another rank's


def test_what_has_no_halves_is_left_alone(caplog):
    joined = "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"
    assert completed(joined, half=torch.tensor(1.0)) != []  # the loader takes the first scale
    assert completed(joined, half=torch.tensor(1.0), part="kv_a_proj_with_mqa") == []
    assert not caplog.records
    for half in (fp8(), torch.ones(Q_ROWS, WIDTH // 2), torch.ones(6, WIDTH), torch.ones(5, WIDTH)):
        assert completed(joined, half=half) == []
    assert len(caplog.records) == 4


def test_other_models_keep_their_loader():
    model = Sparse("model.layers.0.self_attn.qkv_proj.weight")
    parted_weights.complete(model)
    assert "load_weights" not in vars(model)


def test_the_model_runner_completes_what_it_loaded():
    text = inspect.getsource(model_runner.ModelRunner.load_model)
    loaded = text.rindex("self.model = ")
    completes = text.index("parted_weights.complete(self.model)")
    assert loaded < completes
