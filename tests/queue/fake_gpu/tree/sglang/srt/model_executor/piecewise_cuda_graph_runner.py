import torch


class PiecewiseCudaGraphRunner:
    def can_run(self, batch):
        return len(batch.input_ids) <= 4096

    def replay(self, batch):
        torch.cuda.CUDAGraph().replay()
