from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.linear import LinearKernel

class Pegasos(LinearKernel):
    def __init__(
        self, X: Any, y: Any, n_classes: int | None, alpha: float, average: bool, project: bool
    ) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
