from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.lanes import LanesKernel

class StreamingSVRGLanes(LanesKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        initial_batch_size: int,
        batch_growth: float,
        inner_steps: int,
        warm_stages: int,
        factorial: bool,
        seed: int,
        values: list[tuple[float, float]],
    ) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
