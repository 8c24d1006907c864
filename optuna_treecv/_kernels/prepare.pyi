import numpy as np

def gather_rows(X: np.ndarray, order: np.ndarray, last: float, out: np.ndarray) -> bool: ...
def address(memory: np.ndarray) -> int: ...
def fill_bins(
    X: np.ndarray,
    order: np.ndarray,
    edges: np.ndarray,
    begins: np.ndarray,
    is_number: np.ndarray,
    bins: np.ndarray,
) -> None: ...
