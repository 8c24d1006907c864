from collections.abc import Sequence
from typing import Any

import numpy as np

from optuna_treecv._kernels.lanes import LanesKernel

class PegasosLanes(LanesKernel):
    def __init__(
        self,
        X: Any,
        y: np.ndarray | None,
        n_classes: int | None,
        alphas: Sequence[float],
        average: bool,
        project: bool,
    ) -> None: ...
