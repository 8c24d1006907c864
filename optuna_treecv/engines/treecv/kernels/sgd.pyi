from typing import Any

from optuna_treecv.engines.treecv.kernels.linear import LinearKernel

class SGD(LinearKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        power: float,
        average: bool,
        average_start: int,
        values: list[tuple[float, float, float]],
        is_linear: bool = False,
        batch_size: int = 1,
        in_lanes: bool = False,
    ) -> None: ...
