from typing import Any

from optuna_treecv._kernels.linear import LinearKernel

class RootSGD(LinearKernel):
    def __init__(
        self,
        X: Any,
        y: Any,
        n_classes: int | None,
        loss: str,
        epsilon: float,
        alpha: float,
        step_size: float,
        burn_in: int,
    ) -> None: ...
