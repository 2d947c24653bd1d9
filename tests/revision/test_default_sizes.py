"""Which sizes the overlay's runner of the breakable graph captures, and what the report says of
them."""

import itertools
from types import SimpleNamespace

import pytest
from host import late, process

with late.modules():
    from sglang.srt.prefill_graph.breakable import sizes
    from sglang.srt.prefill_graph.compat import arguments

pytestmark = pytest.mark.revision(">=0.5.9,<0.5.14")
LARGEST = [512, 640, 1024, 2048, 4096, 6000, 8192, 16384]


def args_of(largest, tokens=None):
    """Server arguments behind the release's own choice of sizes up to `largest`, or with those that
    a user gave."""
    args = process.with_default_sizes(largest, enable_breakable_cuda_graph=True)
    args.piecewise_cuda_graph_tokens = tokens or args.piecewise_cuda_graph_tokens
    return args


def chosen(args, fitting=None):
    return sizes.choose(args, fitting or args.piecewise_cuda_graph_tokens)


def most_padding(sizes, first=512):
    """Percent of a batch's tokens that padding adds at most, for batches of `first` tokens or
    more."""
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
