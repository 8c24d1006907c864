from typing import Any

from optuna_treecv.engines.treecv.kernels.lanes import LanesKernel

class PegasosLanes(LanesKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        alphas: list[float],
        average: bool,
        project: bool,
    ) -> None: ...
