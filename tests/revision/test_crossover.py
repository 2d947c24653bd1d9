"""From how many tokens on eager prefill is as fast as a graph, by the weights of real shapes."""

import pytest
import subjects
import torch
from host import late, models
from test_default_sizes import args_of

with late.modules():
    from sglang.srt.prefill_graph.breakable import crossover as breakable_crossover
    from sglang.srt.prefill_graph.breakable import sizes
    from sglang.srt.prefill_graph.kernels import tiles

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
CPU = torch.device("cpu")


@pytest.fixture
def hopper(monkeypatch):
    """The GPU is one that was measured."""
    monkeypatch.setattr(tiles, "capability", lambda device: tiles.HOPPER)


def crossover(layers):
    return breakable_crossover.tokens(layers, CPU)


def layers_of(kind, subject=None, **changes):
    """The decoder layers of a model class on the meta device, with a timed subject's shapes."""
    given = dict(subjects.SUBJECTS[subject].config) if subject else {}
    for name in ("architectures", "model_type"):
        given.pop(name, None)
    return models.build(kind, **{**given, **changes}).model.layers


def test_nemotron_ends_behind_its_measured_crossing(hopper):
    """On an H200 eager prefill of this shape was as fast from 1024 tokens on."""
    found = crossover(layers_of("nemotron_h", "nemotron"))
    assert 1024 < found < 2048


def test_experts_count_as_far_as_a_token_meets_them(hopper):
    """Of routed experts a token meets few: the GPU needs more tokens to be as slow as the host."""
    layers = layers_of("qwen3_next", "qwen3-next")
    found = crossover(layers)
    for module in (m for layer in layers for m in layer.modules() if hasattr(m, "num_experts")):
        module.top_k = module.num_experts
    assert found > 4096 and crossover(layers) < found / 10


def test_weights_of_eight_bits_take_half_the_time(hopper):
    linear = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    narrow = torch.nn.Module()
    narrow.weight = torch.nn.Parameter(linear.weight.to(torch.float8_e4m3fn), requires_grad=False)
    assert crossover([narrow]) == pytest.approx(2 * crossover([linear]), rel=0.01)


def test_only_matrix_products_count(hopper):
    """No vectors, no convolution over 4 tokens."""
    layer = torch.nn.Linear(64, 64, bias=False)
    alone = crossover([layer])
    layer.norm, layer.conv1d = torch.nn.LayerNorm(64), torch.nn.Conv1d(64, 64, 4, groups=64)
    assert crossover([layer]) == alone


def test_nothing_is_said_of_what_was_not_measured(hopper, monkeypatch):
    linear, packed, experts = (torch.nn.Linear(64, 64) for _ in range(3))
    packed.qweight = torch.nn.Parameter(torch.zeros(8, 64))
    experts.w13_weight = torch.nn.Parameter(torch.zeros(4, 64, 64))
    assert crossover([linear]) and crossover([linear, packed]) is None
    assert crossover([linear, experts]) is None and crossover([]) is None
    for other in (None, (8, 0), (10, 0)):
        monkeypatch.setattr(tiles, "capability", lambda device, found=other: found)
        assert crossover([linear]) is None


def test_default_sizes_end_there():
    args = args_of(4096)
    fitting = args.piecewise_cuda_graph_tokens
    every, made = sizes.choose(args, fitting), sizes.choose(args, fitting, 1400)
    assert every.tokens[-1] == 4096 and made.tokens == [s for s in every.tokens if s <= 1536]
    assert "from 1400 tokens on eager prefill is as fast" in made.why
    assert sizes.choose(args, fitting, 1).tokens == fitting[:1]
    assert "eager" not in every.why + sizes.choose(args, fitting, 5000).why
    asked = args_of(4096, [1024, 4096])
    assert sizes.choose(asked, [1024, 4096], 1400).tokens == [1024, 4096]
