import numpy as np

def arrange(
    records: np.ndarray,
    roots: np.ndarray,
    order: np.ndarray,
    sizes: np.ndarray,
    place: np.ndarray,
    arranged: np.ndarray,
) -> None: ...
def prune(
    records: np.ndarray,
    sizes: np.ndarray,
    max_depth: int,
    min_split: np.ndarray,
    min_decrease: float,
    alpha: float,
    reached: np.ndarray,
    is_end: np.ndarray,
) -> int: ...
def find_leaves(
    bins: np.ndarray, nodes: np.ndarray, sets: np.ndarray, n_bins: np.ndarray, leaf: np.ndarray
) -> None: ...
