import numpy as np

from optuna_treecv._kernels.tree import Kernel

MOST_NONZEROS: int

class ScaledSparse(Kernel):
    def __init__(self, behind: Kernel, scaled: np.ndarray) -> None: ...
    def moments(
        self, state: np.ndarray, mean: np.ndarray, M2: np.ndarray, known_mean: np.ndarray
    ) -> int: ...
