from typing import Any

from optuna_treecv.engines.treecv.kernels.linear import LinearKernel

class Pegasos(LinearKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        alphas: list[float],
        average: bool,
        project: bool,
        in_lanes: bool = False,
    ) -> None: ...
