"""CPU tests of which graphs a weight update captures anew."""

import unittest
from types import SimpleNamespace
from unittest import mock

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.model_executor import model_runner
from sglang.srt.model_executor.model_runner_components import cuda_graph_setup
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

register_cpu_ci(est_time=20, suite="base-a-test-cpu")


class TestRecapture(CustomTestCase):
    def setUp(self):
        self.calls = []
        platform = SimpleNamespace(
            synchronize=lambda: self.calls.append("synchronize"),
            empty_cache=lambda: self.calls.append("empty cache"),
        )
        for name, stand_in in (
            ("current_platform", platform),
            ("set_global_graph_memory_pool", self._note("forget pool")),
        ):
            patcher = mock.patch.object(cuda_graph_setup, name, stand_in)
            patcher.start()
            self.addCleanup(patcher.stop)

    def _note(self, what):
        return lambda *_, **__: self.calls.append(what)

    def _runner(self, draft=False, algorithm=SpeculativeAlgorithm.NONE):
        made = object.__new__(model_runner.ModelRunner)
        vars(made).update(
            is_draft_worker=draft,
            eager_runner=object(),
            spec_algorithm=algorithm,
            init_prefill_cuda_graph=self._note("prefill"),
            init_decode_cuda_graph=self._note("decode"),
        )
        for name in ("prefill", "decode"):
            backend = SimpleNamespace(cleanup=self._note(f"free {name}"))
            graphs = SimpleNamespace(backend=backend)
            vars(made)[f"{name}_cuda_graph_runner"] = graphs
        return made

    def test_a_weight_update_captures_the_prefill_graph_too(self):
        runner = self._runner()
        vars(runner).update(device="cpu", gpu_id=0, model_config=None)
        stand_ins = {
            "WeightUpdater": lambda **given: SimpleNamespace(**given),
            "get_parallel": lambda: SimpleNamespace(tp_rank=0),
            "get_model": lambda: SimpleNamespace(custom_weight_loader=None),
        }
        with mock.patch.multiple(model_runner, **stand_ins):
            runner.init_weight_updater()
        runner.weight_updater.recapture_cuda_graph()
        self.assertIn("prefill", self.calls)

    def test_old_graphs_are_freed_before_both_are_captured(self):
        self._runner().recapture_cuda_graphs()
        freed = ["synchronize", "free prefill", "free decode", "forget pool"]
        self.assertEqual(self.calls, freed + ["empty cache", "prefill", "decode"])

    def test_the_graphs_of_a_draft_keep_the_pool(self):
        self._runner(algorithm=SpeculativeAlgorithm.EAGLE).recapture_cuda_graphs()
        self.assertNotIn("forget pool", self.calls)

    def test_drafts_without_a_model_hold_no_graph(self):
        self._runner(algorithm=SpeculativeAlgorithm.NGRAM).recapture_cuda_graphs()
        self.assertIn("forget pool", self.calls)

    def test_a_draft_keeps_its_prefill_graph(self):
        draft = self._runner(draft=True)
        kept = draft.prefill_cuda_graph_runner
        draft.recapture_cuda_graphs()
        self.assertEqual(self.calls, ["decode"])
        self.assertIs(draft.prefill_cuda_graph_runner, kept)

    def test_the_eager_runner_holds_nothing_to_free(self):
        runner = self._runner()
        runner.decode_cuda_graph_runner = runner.eager_runner
        runner.recapture_cuda_graphs()
        self.assertNotIn("free decode", self.calls)


if __name__ == "__main__":
    unittest.main()
