import torch


class PiecewiseCudaGraphRunner:
    def replay(self, batch):
        torch.cuda.CUDAGraph().replay()
