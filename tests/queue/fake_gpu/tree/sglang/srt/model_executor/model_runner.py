from sglang.srt.model_executor.piecewise_cuda_graph_runner import PiecewiseCudaGraphRunner
from sglang.srt.prefill_graph.breakable.runner import BreakableRunner


class Mode:
    def __init__(self, name):
        self.name = name

    def is_extend(self):
        return True


class Batch:
    def __init__(self, prompts, mode="EXTEND"):
        self.forward_mode = Mode(mode)
        self.input_ids = [token for prompt in prompts for token in prompt]
        self.batch_size = len(prompts)


class ModelRunner:
    def __init__(self, mode, sizes, is_draft_worker=False):
        self.is_draft_worker = is_draft_worker
        self.runner = {
            "piecewise": PiecewiseCudaGraphRunner,
            "breakable": BreakableRunner,
            "": lambda sizes: None,
        }[mode](sizes)

    def forward(self, batch):
        mode = batch.forward_mode.name
        if self.runner and mode in ("EXTEND", "MIXED") and self.runner.can_run(batch):
            self.runner.replay(batch)
