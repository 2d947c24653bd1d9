"""Prefills counted in each release's own runners of graphs: on the graph, or eagerly and why."""

import contextlib
import gc
import importlib
import inspect
import json
import time
import weakref
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from host import late
from host import runner as host_runner
from host.unsaid import Unsaid, bare
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

with late.modules():
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.prefill_graph.compat import eager
    from sglang.srt.prefill_graph.report import counts, records, verdict

EXECUTOR = "sglang.srt.model_executor"
MODEL_RUNNER = f"{EXECUTOR}.model_runner"
OWN = {  # the releases' own runners of prefill graphs
    "piecewise": (f"{EXECUTOR}.piecewise_cuda_graph_runner", "PiecewiseCudaGraphRunner"),
    "breakable": (f"{EXECUTOR}.breakable_cuda_graph_runner", "BreakableCudaGraphRunner"),
    "prefill": (f"{EXECUTOR}.runner.prefill_cuda_graph_runner", "PrefillCudaGraphRunner"),
}
# how many requests a graph has places for: the releases with one runner for all graphs say
PLACES = "_capture_req_slots", "_captured_attn_metadata_max_bs", "_is_full_backend"


def later():
    """Whether one runner serves every kind of prefill graph (from 0.5.14)."""
    return late.has(OWN["prefill"][0])


def hidden(name):
    return forward_batch_info.CaptureHiddenMode[name]


def batch_of(tokens=32, **fields):
    """A batch as far as the decision looks at it: one prompt without anything special."""
    values = dict(
        forward_mode=forward_batch_info.ForwardMode.EXTEND,
        batch_size=1,
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.arange(tokens),
        extend_logprob_start_lens_cpu=[tokens],
        extend_seq_lens_cpu=[tokens],
        extend_prefix_lens_cpu=[0],
        seq_lens_cpu=torch.tensor([tokens]),
        capture_hidden_mode=hidden("NULL"),
        can_run_dp_breakable_cuda_graph=True,
        can_run_dp_prefill_cuda_graph=True,
        contains_mm_inputs=lambda: False,
        needs_forward_metadata_init=lambda: False,
    )
    return Unsaid(**values | fields)


def graph_of(kind, **fields):
    """The release's own runner of `kind`, its capture stood in for: 64 and 128 tokens."""
    return captured(*OWN[kind], **fields)


def captured(module, name, **fields):
    """A runner of the class `name` whose capture is stood in for."""
    own = getattr(importlib.import_module(module), name)
    values = dict(
        capture_num_tokens=[64, 128],
        max_num_tokens=128,
        max_bs=8,
        capture_hidden_mode=hidden("NULL"),
        layer_model=object(),
        prefill_backend_name="breakable",
        _is_full_backend=False,
        _capture_req_slots=1,
        _captured_attn_metadata_max_bs=None,
        has_mha_companion_layers=False,
        mla_pinned_under_bcg=False,
        _capture_chunked_prefix=False,
        _capture_lora=False,
        enable_lora=False,
        model_runner=SimpleNamespace(is_multimodal=False, attn_backend=None),
        max_context_size=None,
        max_seq_len=None,
        dllm_attention=None,
        _fa4_prefill=False,
        _qwen_bcg_hc_sidechannel=False,
        _qwen_bcg_mtp_draft=False,
        _backend_can_run_prefill_cuda_graph=None,
        _uses_eager_prefill_tail=lambda: True,
        hidden_modes=(hidden("NULL"),),  # the overlay's
        given=(),
    )
    graph = object.__new__(own)
    for field, value in (values | fields).items():
        with contextlib.suppress(AttributeError):  # a property of this release
            if later() or field not in PLACES:
                setattr(graph, field, value)
    return graph


KINDS = [kind for kind in OWN if late.has(OWN[kind][0])]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.skipif(not later(), reason="an earlier release has a runner for each graph")
def test_a_piecewise_graph_from_14_says_what_it_refuses():
    """Its runner names no stack of layers. That of 0.5.16 and later refuses log-probabilities."""
    graph = graph_of(
        "prefill",
        layer_model=None,
        backend=object(),
        prefill_backend_name="tc_piecewise",
        _uses_eager_prefill_tail=lambda: False,
    )
    runner = SimpleNamespace(prefill_cuda_graph_runner=graph)
    assert eager.graph_runner(runner) is graph
    wanted = batch_of(return_logprob=True, extend_logprob_start_lens_cpu=[0])
    assert eager.why(runner, wanted) == "log-probabilities of the prompt are wanted"


def asks(graph, forward_batch):
    return getattr(graph, "can_run_graph", None) or graph.can_run


def runner_with(graph):
    """A model runner that has this graph."""
    name = "prefill_cuda_graph_runner" if later() else "piecewise_cuda_graph_runner"
    return SimpleNamespace(**{name: graph})


CAUSES = {
    "more tokens than the largest size": dict(tokens=129),
    "log-probabilities of the prompt are wanted": dict(
        return_logprob=True, extend_logprob_start_lens_cpu=[0]
    ),
    "hidden states are wanted that were not captured": dict(capture="FULL"),
    "the request brings embeddings": dict(input_embeds=torch.zeros(1)),
    "another rank cannot replay this step": dict(
        global_num_tokens_cpu=[32, 0],
        can_run_dp_breakable_cuda_graph=False,
        can_run_dp_prefill_cuda_graph=False,
    ),
    "fewer tokens than half of the next size": dict(tokens=3),
    "a cached prefix that was not captured": dict(extend_prefix_lens_cpu=[16]),
    "more requests than the graph has places for": dict(batch_size=3),
    "adapters are in use that were not captured": dict(),
}
GRAPHS = {  # what the runner of the graph is like, for some of them
    "log-probabilities of the prompt are wanted": dict(_uses_eager_prefill_tail=lambda: False),
    "a cached prefix that was not captured": dict(has_mha_companion_layers=True),
    "more requests than the graph has places for": dict(
        _is_full_backend=True, _captured_attn_metadata_max_bs=2
    ),
    "adapters are in use that were not captured": dict(enable_lora=True),
}


def refused(kind, words):
    """The graph, and a batch that this cause keeps from it; None where there is no such rule."""
    changes = dict(CAUSES[words])
    if "capture" in changes:
        changes["capture_hidden_mode"] = hidden(changes.pop("capture"))
    graph, batch = graph_of(kind, **GRAPHS.get(words, {})), batch_of(**changes)
    with mock.patch.dict(vars(importlib.import_module(OWN[kind][0]))) as names:
        names["is_cuda"] = lambda: False
        return None if asks(graph, batch)(batch) else (graph, batch)


def test_a_plain_prompt_is_taken(kind):
    graph, batch = graph_of(kind), batch_of(tokens=64)
    assert asks(graph, batch)(batch)


class Refuses(TorchDispatchMode):
    """Lets no operation of torch run on what the device, here "meta", holds."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
        assert not any(one.is_meta for one in tensors), f"{function} was run"
        return function(*args, **(kwargs or {}))


def counted_causes(graph, batch):
    """What is counted where the graph refuses the batch. Counting asks nothing of the device: any
    operation of torch, however cheap, could wait for the GPU."""
    runner, noted = runner_with(graph), counts.Counts(lambda *_: None)
    batch.input_ids, batch.positions = batch.input_ids.to("meta"), batch.positions.to("meta")
    counts.keep(runner, noted)
    with Refuses():
        assert counts.ran_on_graph(runner) is True
        assert counts.ran_eagerly(runner, batch) is False
    return noted.eager


def test_the_cause_of_each_refusal_is_counted(kind):
    """What the release itself refuses, it refuses for this."""
    found = {words: refused(kind, words) for words in CAUSES}
    noted = {words: counted_causes(*both) for words, both in found.items() if both}
    assert noted == {words: {words: 1} for words in noted}
    assert [*noted][:2] == [*CAUSES][:2] and len(noted) >= (4 if later() else 2)


def test_what_the_release_does_not_ask_for_is_no_cause():
    """Embeddings run on the graph up to 0.5.9: a batch with them is refused for another reason."""

    class Asks(Graph):
        def can_run(self, forward_batch):
            return not forward_batch.contains_mm_inputs()

        can_run_graph = can_run

    batch = batch_of(input_embeds=torch.zeros(1), contains_mm_inputs=lambda: True)
    assert eager.why(runner_with(Asks()), batch) == "the batch has images"


def test_a_cause_that_cannot_be_asked_harms_nothing():
    graph = graph_of(KINDS[0])
    broken = SimpleNamespace(input_ids=None)
    assert eager.why(runner_with(graph), broken) == "another rule of the release (TypeError)"


@pytest.mark.skipif(not later(), reason="an earlier release has None in the place of a graph")
def test_an_eager_runner_is_no_graph():
    runner = runner_with(object())
    runner.eager_runner = runner.prefill_cuda_graph_runner
    assert eager.why(runner, batch_of()) == "the graph is off"


def counted(monkeypatch, graph, reports=True):
    """A ModelRunner of the release whose prefills are counted, and what calls its own decision."""
    module = importlib.import_module(MODEL_RUNNER)
    model = mock.MagicMock()
    model.forward.return_value = "eager"
    runner = bare(
        module.ModelRunner,
        model=model,
        device="cpu",
        is_generation=True,
        attn_backend=mock.MagicMock(),
        server_args=SimpleNamespace(enable_pdmux=True),
        piecewise_cuda_graph_runner=graph,
        prefill_cuda_graph_runner=graph,
        eager_runner=SimpleNamespace(execute=lambda *_, **__: "eager"),
        pp_group=SimpleNamespace(is_last_rank=True),
        _prepare_eager_forward_batch=lambda _: None,
        _maybe_execute_deferred_mamba_cow_and_clear=lambda _: None,
        _extend_forward_kwargs=lambda *_: {},
    )
    found = counts.Counts(lambda *_: None)
    if reports:
        counts.keep(runner, found)
    return runner, found


def forward(runner, batch):
    """What the release's own code makes of a batch: "graph" or "eager"."""
    if not later():
        name = "skip_attn_backend_init"
        known = inspect.signature(runner.forward_extend).parameters
        found = runner.forward_extend(batch, **({name: True} if name in known else {}))
        return found[0] if isinstance(found, tuple) else found
    module = importlib.import_module(MODEL_RUNNER)
    stand_ins = dict(
        get_model=mock.MagicMock(),
        get_cp_strategy=lambda: None,
        get_global_dwdp_manager=lambda: None,
        _prefill_cuda_graph_allows_context_parallel=lambda *_: True,
    )
    known = {name: stand_ins[name] for name in stand_ins if name in vars(module)}
    with mock.patch.dict(vars(module), known):
        return runner._forward_raw(batch, None).logits_output


class Graph:
    """A runner of graphs that takes batches of up to 128 tokens."""

    max_num_tokens, capture_num_tokens = 128, [128]

    def can_run(self, forward_batch):
        return len(forward_batch.input_ids) <= self.max_num_tokens

    can_run_graph = can_run

    def replay(self, forward_batch, **_):
        return "graph"

    execute = replay


@pytest.mark.parametrize("reports", [True, False], ids=["target", "draft, which does not report"])
def test_the_releases_own_decision_is_counted(monkeypatch, reports):
    runner, counts = counted(monkeypatch, Graph(), reports)
    took = [forward(runner, batch_of(tokens)) for tokens in (32, 128, 200, 64, 300)]
    assert took == ["graph", "graph", "eager", "graph", "eager"]
    wanted = (3, {"more tokens than the largest size": 2}) if reports else (0, {})
    assert (counts.on_graph, counts.eager) == wanted


def test_what_is_no_prefill_is_not_counted(monkeypatch):
    runner, counts = counted(monkeypatch, Graph())
    forward(runner, batch_of(300, forward_mode=forward_batch_info.ForwardMode.TARGET_VERIFY))
    if later():
        forward(runner, batch_of(300, forward_mode=forward_batch_info.ForwardMode.DECODE))
    assert (counts.on_graph, counts.eager) == (0, {})


def test_without_a_graph_every_prefill_is_eager(monkeypatch):
    runner, counts = counted(monkeypatch, None)
    assert forward(runner, batch_of()) == "eager"
    assert (counts.on_graph, counts.eager) == (0, {"the graph is off": 1})


def test_the_record_is_written_at_most_once_in_an_interval(monkeypatch):
    monkeypatch.setattr(counts, "INTERVAL", 0.3)
    written = []
    found = counts.Counts(lambda on_graph, eager: written.append((on_graph, dict(eager))))
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.5:
        found.add(None)
        found.add("a reason")
        time.sleep(0.001)
    deadline = time.perf_counter() + 10
    while not written or written[-1][0] != found.on_graph:
        assert time.perf_counter() < deadline, written
        time.sleep(0.01)
    assert len(written) <= 4 and written[-1] == (found.on_graph, {"a reason": found.on_graph})
    quiet = len(written)
    time.sleep(0.7)
    assert len(written) == quiet  # nothing new, nothing written


def test_counts_reach_the_file(tmp_path, monkeypatch, build_model):
    """From a model runner that the release decided for, by way of the hooks."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(counts, "INTERVAL", 0.01)
    made = []

    def report(runner):
        made.extend([runner, verdict.report_prefill_graph(runner)])

    host_runner.set_up(build_model("llama"), report)
    runner, record = made
    assert record and (record.verdict, record.sizes) == ("on", (64, 128))
    counts.ran_on_graph(runner)
    [path] = tmp_path.glob("sglang-prefill-graph-*/*.json")
    deadline = time.perf_counter() + 10
    while json.loads(path.read_text())["on_graph"] != 1:
        assert time.perf_counter() < deadline
        time.sleep(0.01)


def test_a_graph_that_was_captured_anew_is_told_and_the_old_one_let_go(tmp_path, monkeypatch):
    """An update of the weights can capture other sizes, and must not keep two graphs in memory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runner = runner_with(Graph())
    runner.server_args, runner.tp_rank = SimpleNamespace(), 0
    monkeypatch.setattr(verdict, "_feature", lambda _: "a graph")
    explained, own = [], verdict.explain
    monkeypatch.setattr(verdict, "explain", lambda runner: explained.append(1) or own(runner))
    leave = verdict._Leaving(runner, verdict.make_record(runner))
    leave(1, {})
    leave(2, {"a reason": 1})
    assert len(explained) == 1
    name = next(name for name in vars(runner) if name.endswith("_graph_runner"))
    old = weakref.ref(getattr(runner, name))
    setattr(runner, name, Graph())
    gc.collect()
    assert old() is None
    getattr(runner, name).capture_num_tokens = [16, 32]
    leave(3, {"a reason": 1})
    [found] = records.read_all()
    assert (found.sizes, found.on_graph, found.eager) == ((16, 32), 3, {"a reason": 1})
    assert len(explained) == 2
