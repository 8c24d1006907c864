import numpy as np

from optuna_treecv.engines.treecv.kernels.kernel import Kernel

VECTOR_BYTES: int
MOST: int

class LinearKernel(Kernel):
    def leave_room(self, n_rows: int) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
    def take(
        self, source: LinearKernel, state: np.ndarray, models: np.ndarray, out: np.ndarray
    ) -> None: ...
