from typing import Any

from optuna_treecv.engines.treecv.kernels.kernel import Kernel

class Gaussian(Kernel):
    def __init__(self, X: Any, n_features: int, full: bool, reg_covar: float) -> None: ...
    @property
    def model_type(self) -> str: ...
