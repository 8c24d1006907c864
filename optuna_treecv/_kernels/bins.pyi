import numpy as np

def fill_bins(
    X: np.ndarray,
    order: np.ndarray,
    edges: np.ndarray,
    begins: np.ndarray,
    is_number: np.ndarray,
    bins: np.ndarray,
) -> None: ...
