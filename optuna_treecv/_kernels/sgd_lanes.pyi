from collections.abc import Sequence
from typing import Any

import numpy as np

from optuna_treecv._kernels.lanes import LanesKernel

class SGDLanes(LanesKernel):
    def __init__(
        self,
        X: Any,
        y: np.ndarray | None,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        power: float,
        average: bool,
        average_start: int,
        values: Sequence[tuple[float, float, float]],
        is_linear: bool = False,
    ) -> None: ...
