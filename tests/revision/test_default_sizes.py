"""Which sizes the overlay's runner of the breakable graph captures, what the report says of them,
and from how many tokens on eager prefill is as fast, by the weights of real shapes."""

import itertools
from types import SimpleNamespace

import pytest
import subjects
import torch
from host import late, models, process

with late.modules():
    from sglang.srt.prefill_graph.breakable import crossover as breakable_crossover
    from sglang.srt.prefill_graph.breakable import sizes
    from sglang.srt.prefill_graph.compat import arguments
    from sglang.srt.prefill_graph.kernels import tiles

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
CPU = torch.device("cpu")
LARGEST = [512, 640, 1024, 2048, 4096, 6000, 8192, 16384]


def args_of(largest, tokens=None):
    """Server arguments behind the release's choice of sizes up to `largest`, or with a user's."""
    args = process.with_default_sizes(largest, enable_breakable_cuda_graph=True)
    args.piecewise_cuda_graph_tokens = tokens or args.piecewise_cuda_graph_tokens
    return args


def chosen(args, fitting=None):
    return sizes.choose(args, fitting or args.piecewise_cuda_graph_tokens)


def most_padding(sizes, first=512):
    """Percent of tokens that padding adds at most to a batch of `first` tokens or more."""
    pairs = [(low + 1, high) for low, high in itertools.pairwise(sizes) if low >= first]
    return max((100 * (high - tokens) / tokens for tokens, high in pairs), default=0)


@pytest.mark.parametrize("largest", LARGEST)
def test_padding_is_less_than_a_tenth_from_512_tokens_on(largest):
    args = args_of(largest)
    made, default = chosen(args), args.piecewise_cuda_graph_tokens
    assert made.tokens == sorted(set(made.tokens)) and set(default) <= set(made.tokens)
    assert most_padding(made.tokens) < 10
    assert len(made.tokens) - len(default) <= 11
    assert [size for size in made.tokens if size <= 512] == [s for s in default if s <= 512]


def test_sizes_that_do_not_fit_leave_the_rest_the_default():
    made = chosen(args_of(8192), [512, 576, 640])
    assert made.tokens == [512, 544, 576, 608, 640] and "default" in made.why


def test_arguments_that_are_not_resolved_have_no_default_sizes():
    unresolved = process.default_server_args(piecewise_cuda_graph_tokens=[64])
    assert not arguments.has_default_sizes(unresolved)
    assert not arguments.has_default_sizes(SimpleNamespace(piecewise_cuda_graph_tokens=[64]))


# --- where they end


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
