import numpy as np

from optuna_treecv.engines.treecv.kernels.kernel import Kernel

VECTOR_BYTES: int
MOST: int

class LanesKernel(Kernel):
    def leave_room(self, n_rows: int) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
    def take(
        self, source: LanesKernel, state: np.ndarray, models: np.ndarray, out: np.ndarray
    ) -> None: ...
