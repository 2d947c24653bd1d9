import torch


class BreakableRunner:
    def __init__(self, sizes):
        self.capture_num_tokens = sizes

    def can_run(self, batch):
        return len(batch.input_ids) <= 4096

    def replay(self, batch):
        torch.cuda.CUDAGraph().replay()
