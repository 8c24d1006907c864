import numpy as np

from optuna_treecv.engines.kernel_machines.kernels.gram import Gram

class DualSolver:
    def __dealloc__(self) -> None: ...
    @property
    def n_bytes(self) -> int: ...
    def move(
        self, K: Gram, changes: np.ndarray, coefs: np.ndarray, gradient: np.ndarray
    ) -> float: ...
    def solve(
        self,
        K: Gram,
        targets: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
        epsilon: float,
        coefs: np.ndarray,
        gradient: np.ndarray,
        tol: float,
        steps: float = 1.0,
        drift: float = 0,
        uses_kept: bool = False,
    ) -> tuple[float, float, float]: ...
    def keeps(self, coefs: object) -> bool: ...
    def keep(
        self,
        K: Gram,
        lower: np.ndarray,
        upper: np.ndarray,
        epsilon: float,
        coefs: np.ndarray,
        gradient: np.ndarray,
    ) -> None: ...
