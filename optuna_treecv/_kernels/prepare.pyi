import numpy as np

def copy_rows(
    X: np.ndarray,
    last: float,
    out: np.ndarray,
    source: np.ndarray | None = None,
    target: np.ndarray | None = None,
) -> bool: ...
def inverse(order: np.ndarray, out: np.ndarray) -> bool: ...
def address(memory: np.ndarray) -> int: ...
def fill_bins(
    X: np.ndarray,
    order: np.ndarray,
    edges: np.ndarray,
    offsets: np.ndarray,
    is_binned: np.ndarray,
    bins: np.ndarray,
) -> None: ...
