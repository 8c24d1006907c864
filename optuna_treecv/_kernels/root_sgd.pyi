from typing import Any

import numpy as np

from optuna_treecv._kernels.linear import LinearKernel

class RootSGD(LinearKernel):
    def __init__(
        self,
        X: Any,
        y: np.ndarray | None,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        alpha: float,
        step_size: float,
        burn_in: int,
    ) -> None: ...
