from typing import Any

import numpy as np

from optuna_treecv.engines.treecv.kernels.linear import LinearKernel

def inner_length(seed: int, stage: int, inner_steps: int) -> int: ...

class StreamingSVRG(LinearKernel):
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
        in_lanes: bool = False,
    ) -> None: ...
    def start(self, state: np.ndarray) -> None: ...
    def n_used(self, state: np.ndarray) -> int: ...
