from sglang.srt.model_executor.piecewise_cuda_graph_runner import PiecewiseCudaGraphRunner
from sglang.srt.prefill_graph.breakable.runner import BreakableRunner


class Extend:
    def is_extend(self):
        return True


class Batch:
    forward_mode = Extend()

    def __init__(self, prompts):
        self.input_ids = [token for prompt in prompts for token in prompt]
        self.batch_size = len(prompts)


class ModelRunner:
    def __init__(self, mode, sizes):
        self.runner = {"piecewise": PiecewiseCudaGraphRunner, "breakable": BreakableRunner, "": lambda sizes: None}[mode](sizes)

    def forward(self, batch):
        if self.runner and self.runner.can_run(batch):
            self.runner.replay(batch)
