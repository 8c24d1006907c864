import numpy as np

def rbf_gram(X: np.ndarray, gamma: float, out: np.ndarray) -> None: ...

class Gram:
    def __init__(
        self, values: np.ndarray, X: np.ndarray | None = None, gamma: float = 0.0
    ) -> None: ...
    @property
    def values(self) -> np.ndarray: ...
