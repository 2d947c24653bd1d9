"""As much of torch as the watch and run.py look at."""

import time

Tensor = object
__version__ = "2.11.0+cu130"


class version:
    cuda = "13.0"


class cuda:
    class CUDAGraph:
        def replay(self):
            pass

    @staticmethod
    def synchronize():
        time.sleep(0.01)  # the GPU ends behind its host
