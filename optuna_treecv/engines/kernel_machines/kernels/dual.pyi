import numpy as np

class DualSolver:
    def __dealloc__(self) -> None: ...
    def move(
        self, K: np.ndarray, changes: np.ndarray, coefs: np.ndarray, gradient: np.ndarray
    ) -> None: ...
    def solve(
        self,
        K: np.ndarray,
        targets: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
        epsilon: float,
        coefs: np.ndarray,
        gradient: np.ndarray,
        tol: float,
    ) -> tuple[float, float]: ...
