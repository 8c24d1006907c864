from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.linear import LinearKernel

class SGD(LinearKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        alpha: float,
        step_size: float,
        power: float,
        radius: float,
        batch_size: int,
        average: bool,
        average_start: int,
        is_linear: bool = False,
    ) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
