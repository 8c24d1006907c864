from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.kernel import Kernel

class KMeans(Kernel):
    def __init__(self, X: Any, n_clusters: int) -> None: ...
    def counts(self, state: np.ndarray) -> list[int] | list[float]: ...
