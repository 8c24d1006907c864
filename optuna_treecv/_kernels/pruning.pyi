import numpy as np

def prune(
    records: np.ndarray,
    max_depth: int,
    min_split: np.ndarray,
    min_decrease: float,
    alpha: float,
    stop: np.ndarray,
) -> None: ...
def preorder(records: np.ndarray, root: int, stop: np.ndarray, order: np.ndarray) -> int: ...
def find_leaves(
    bins: np.ndarray, nodes: np.ndarray, sets: np.ndarray, n_bins: np.ndarray, leaf: np.ndarray
) -> None: ...
